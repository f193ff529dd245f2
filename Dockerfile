# The server on a CPU: docker build --tag polyvox . && docker run --publish 127.0.0.1:8000:8000 polyvox
FROM python:3.12-slim

RUN pip install --no-cache-dir uv==0.13.7
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN uv pip install --system --no-cache --torch-backend cpu --constraint constraints.txt .

RUN useradd --create-home polyvox
USER polyvox
WORKDIR /home/polyvox
EXPOSE 8000
ENTRYPOINT ["polyvox"]
CMD ["serve", "--host", "0.0.0.0"]
