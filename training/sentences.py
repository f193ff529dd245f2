"""The evaluation lists: everyday sentences written for this, and in no training text (texts.py leaves them out)."""

TEST = """
Could you pass me the salad bowl, please?
We ran out of milk again this morning.
My grandmother used to tell us stories by the fireplace.
The bus was so crowded that I had to stand the whole way.
I usually take a short walk after dinner.
Did anyone remember to feed the cat?
The children are building a sandcastle near the water.
She speaks three languages and is learning a fourth.
Please turn off the lights before you go to bed.
It has been raining since early afternoon.
I left my umbrella in the taxi.
We should leave now if we want to catch the last train.
The soup needs a little more salt.
He has worked at the same company for twenty years.
Can I borrow your pen for a moment?
They painted the fence green over the weekend.
The baby finally fell asleep.
There is a good bakery around the corner from my flat.
What would you like to drink with your meal?
I am not sure whether the shop is still open.
The teacher asked us to read the first two chapters.
His phone rang in the middle of the movie.
Take the second street on the right after the bridge.
The doctor told me to rest for a few days.
My brother is taller than my father.
We had a wonderful time at the wedding.
The neighbors are away until next Thursday.
I would rather stay home and watch a film tonight.
Your jacket is hanging behind the door.
The museum opens at ten in the morning.
How long have you been living in this city?
She forgot her keys and could not get into the house.
It is much colder today than it was yesterday.
The waiter brought us the wrong order.
I can hardly hear you, the music is too loud.
They are planning to move to a bigger apartment.
The apples from our garden are sweet this year.
Have you seen my glasses anywhere?
He plays the guitar in a small band.
We talked on the phone for almost an hour.
The road to the village is closed because of snow.
I bought this shirt at the market for seven dollars.
You can park your car in front of the house.
Our flight was delayed by two hours.
The dog barked at the mailman again.
She is looking for a job closer to home.
I made pancakes for breakfast this morning.
The elevator is broken, so we have to take the stairs.
Would you mind opening the window a little?
The sun sets early in the winter.
He apologized for being late to the meeting.
Put the clean dishes back in the cupboard.
I have a dentist appointment on Friday afternoon.
The river runs right through the old town.
We met each other at university many years ago.
The price of bread has gone up again.
Do not touch the stove, it is still hot.
My sister sent me a postcard from the island.
The team lost the game in the last minute.
I need to charge my phone before we leave.
There were only five people in the classroom.
Let me know when you get home safely.
The garden looks lovely in the spring.
He drinks his coffee without sugar.
We watched the boats come into the harbor.
The printer is out of paper again.
She cut her finger while chopping onions.
I think we took a wrong turn somewhere.
The library will be closed on public holidays.
My parents have been married for thirty years.
Could you speak a little more slowly?
The kids are doing their homework upstairs.
He found an old photograph in the attic.
It takes me half an hour to get to work.
We are having some friends over for dinner.
The shoes were too small, so I returned them.
I prefer tea in the morning and coffee after lunch.
The storm knocked down a tree in our street.
She always arrives a few minutes early.
Nobody answered when I knocked on the door.
The hotel room had a view of the sea.
I will call you back as soon as I can.
They grow tomatoes and peppers on the balcony.
The battery in my watch is dead.
You should wear a warm coat today.
We got lost on the way to the airport.
He is saving money to buy a motorcycle.
The cake smells delicious.
My favorite season is autumn.
I heard a strange noise in the kitchen last night.
The tickets were sold out within an hour.
She waved at us from across the street.
Please write your name at the top of the page.
The farmer sells fresh eggs on Saturdays.
We need to finish this report by tomorrow.
The water in the lake was surprisingly warm.
He closed his eyes and counted to ten.
I have never tasted anything like this before.
The pharmacy is next to the post office.
Thank you for helping me carry the boxes.
""".strip().splitlines()

# Sampling and checkpoints are chosen by these.
DEVELOPMENT = """
I put the letter on the kitchen table.
The weather forecast says it will clear up by noon.
Can you help me move this heavy sofa?
She wrote a long email to her landlord.
We usually go swimming on Wednesday evenings.
The car would not start this morning.
My uncle keeps bees behind his house.
What time does the concert begin?
He spilled orange juice all over the carpet.
They walked along the beach until sunset.
I have been thinking about changing my job.
The cashier gave me too much change.
Our teacher was ill, so we went home early.
There is a spider in the bathtub.
Do you want to share a dessert?
The mountain was covered in thick fog.
She has two brothers and one sister.
Please hang your coat on the hook.
I could not sleep because of the heat.
The old clock in the hall has stopped.
He asked the driver to wait outside.
We picked strawberries at the farm.
My computer is slower than it used to be.
The boy hid his toys under the blanket.
Where can I buy a ticket for the tram?
The sky turned orange just before dark.
You left the front door wide open.
The nurse smiled and closed the curtain.
I almost missed my stop.
We cooked rice with vegetables and fish.
The students laughed at his joke.
Her new haircut suits her very well.
I cannot find the other sock.
The dentist was friendly and gentle.
It is your turn to wash the dishes.
They named their daughter after her aunt.
The bridge was built a hundred years ago.
Someone stole my bicycle last week.
He never says goodbye on the phone.
The bread is still warm from the oven.
""".strip().splitlines()
