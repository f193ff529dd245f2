# SPDX-License-Identifier: Apache-2.0
"""Isolation of a process that handles untrusted input: no network, no files, no other processes (Linux)."""

import ctypes
import errno
import os
import platform
import struct

# prctl(2), seccomp(2), unshare(2)
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
# Instructions of classic BPF, and offsets in struct seccomp_data
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4


# What computation on open files needs: the numbers of each system call in the order of ARCHITECTURES. Every other one
# fails with EPERM, above all those that open files and sockets, start programs, signal other processes or raise limits.
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "newfstatat": (262, 79), "lseek": (8, 62),
    "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "fcntl": (72, 25), "ppoll": (271, 73),
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "getpid": (39, 172), "gettid": (186, 178),
    "nanosleep": (35, 101), "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "getrusage": (98, 165),
    "getrandom": (318, 278), "set_robust_list": (273, 99), "rseq": (334, 293), "membarrier": (324, 283),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_…


def isolate() -> str:
    """Isolates this process for the rest of its life; returns how, or why not.

    Files that are open stay usable. Call it when everything is imported.
    """
    try:
        install_filter()
        return "system call filter"
    except OSError as error:
        reason = error.strerror
    try:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        return f"network namespace (no system call filter: {reason})"
    except OSError as error:
        return f"none (no system call filter: {reason}; no network namespace: {error.strerror})"


def install_filter() -> None:
    """Lets all system calls but ALLOWED fail with EPERM; raises OSError where that is not possible."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"not supported on {platform.system()} {machine}")
    program = filter_program(machine)
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, a pointer
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions)))
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0)


def filter_program(machine: str) -> bytes:
    """The filter in BPF: instructions of 8 bytes with code, two jump distances and a constant."""
    numbers = [each[[*ARCHITECTURES].index(machine)] for each in ALLOWED.values()]
    refuse, allow = SECCOMP_RET_ERRNO | errno.EPERM, SECCOMP_RET_ALLOW
    program = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, refuse),
        (LOAD, 0, 0, NUMBER_OFFSET),
        *((JUMP_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)),
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, allow),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _call(name: str, *arguments: int) -> None:
    """Calls a function of the C library; raises OSError."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError):  # not on Windows
        raise OSError(errno.ENOSYS, f"there is no {name}") from None
    if function(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
