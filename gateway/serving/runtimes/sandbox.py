"""Sandbox of a process that runs foreign code: seccomp, Landlock and limits, entered by the process itself, for good.

The filter lists what is refused, by class, not what is allowed: numpy, threads and the C library use other calls in
each version, and a refused call ends in an error of the library that its authors did not foresee. Memory stays bounded
because every way to memory that `RLIMIT_DATA` does not count is refused as well. On x86-64 and 64-bit ARM only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 22, 38, 24  # linux/prctl.h
SECCOMP_MODE_FILTER = 2
KILL, ALLOW, REFUSE = 0x8000_0000, 0x7FFF_0000, 0x0005_0000  # linux/seccomp.h: SECCOMP_RET_KILL_PROCESS, _ALLOW, _ERRNO
_ARCHITECTURES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}
"""Number of an architecture in linux/audit.h, and its column in the table of calls."""
X32 = 0x4000_0000
LEAST_LANDLOCK, SCOPES = 1, 6
"""Oldest version of Landlock, and the one that also bounds signals and abstract sockets."""
FILE_RIGHTS = (0, 13, 14, 15, 15, 16, 16)
"""Rights to files that each version of Landlock knows, as a number of bits (linux/landlock.h)."""
READ_FILE, READ_FOLDER, SOCKET_FILES = 1 << 2, 1 << 3, 1 << 9
OOM_SCORE_ADJ = "500"
THREADS = 4_096
"""Threads beyond those of this user, whose processes share that number: the gateway counts those of each."""
UNBOUNDED_BYTES = 2**50
ADDRESSES_BYTES = 16 * 2**30
"""Addresses beyond the data, such as libraries and arenas of threads: their page tables take 32 MiB at most."""

_REFUSED = """
socket 41 198 connect 42 203 accept 43 202 accept4 288 242 bind 49 200 listen 50 201 fork 57 - vfork 58 -
execve 59 221 execveat 322 281 unshare 272 97 setns 308 268 ptrace 101 117 process_vm_readv 310 270
process_vm_writev 311 271 kcmp 312 272 pidfd_open 434 434 pidfd_getfd 438 438 pidfd_send_signal 424 424
process_madvise 440 440 process_mrelease 448 448 rt_sigqueueinfo 129 138 rt_tgsigqueueinfo 297 240 tkill 200 130
setpriority 141 140 ioprio_set 251 30 sched_setscheduler 144 119 sched_setparam 142 118 sched_setattr 314 274
setrlimit 160 164 migrate_pages 256 238 move_pages 279 239 memfd_create 319 279 memfd_secret 447 447 shmget 29 194
shmat 30 196 msgget 68 186 semget 64 190 mq_open 240 180 mq_unlink 241 181 mount 165 40 umount2 166 39
pivot_root 155 41 chroot 161 51 swapon 167 224 swapoff 168 225 open_tree 428 428 move_mount 429 429 fsopen 430 430
fsconfig 431 431 fsmount 432 432 fspick 433 433 mount_setattr 442 442 quotactl 179 60 quotactl_fd 443 443
name_to_handle_at 303 264 open_by_handle_at 304 265 fanotify_init 300 262 creat 85 - truncate 76 45 mkdir 83 -
mkdirat 258 34 rmdir 84 - unlink 87 - unlinkat 263 35 rename 82 - renameat 264 38 renameat2 316 276 link 86 -
linkat 265 37 symlink 88 - symlinkat 266 36 mknod 133 - mknodat 259 33 chmod 90 - fchmodat 268 53 fchmodat2 452 452
chown 92 - lchown 94 - fchownat 260 54 setxattr 188 5 lsetxattr 189 6 removexattr 197 14 lremovexattr 198 15
utime 132 - utimes 235 - futimesat 261 - utimensat 280 88 bpf 321 280 perf_event_open 298 241 userfaultfd 323 282
io_uring_setup 425 425 io_uring_enter 426 426 io_uring_register 427 427 add_key 248 217 request_key 249 218
keyctl 250 219 init_module 175 105 finit_module 313 273 delete_module 176 106 kexec_load 246 104
kexec_file_load 320 294 reboot 169 142 syslog 103 116 acct 163 89 settimeofday 164 170 clock_settime 227 112
clock_adjtime 305 266 adjtimex 159 171 sethostname 170 161 setdomainname 171 162 iopl 172 - ioperm 173 -
modify_ldt 154 - personality 135 92 vhangup 153 58 mremap 25 216 fchmod 91 52 fchown 93 55 fsetxattr 190 7
fremovexattr 199 16 setxattrat 463 463 removexattrat 466 466 open_tree_attr 467 467 file_setattr 469 469
inotify_init 253 - inotify_init1 294 26 fanotify_mark 301 263
"""
"""Calls that are refused whatever their arguments are: name, number on x86-64, number on 64-bit ARM.

mremap makes a page of the stack as large as wished, which RLIMIT_DATA does not count: the C library copies instead.
"""
_DRIVERS = """
socket connect bind accept accept4 listen setpriority ioprio_set sched_setscheduler sched_setparam sched_setattr
setrlimit memfd_create shmget shmat creat truncate mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
chmod fchmodat utimensat mremap fchmod inotify_init inotify_init1
"""
"""Those of them that drivers of accelerators use: services of the vendor, shared memory, caches of compiled code."""
_ABSENT = ((435, 435), (437, 437))
"""clone3 and openat2, whose flags are in memory that a filter cannot read: the C library then uses clone and openat."""
_THREAD, _WRITES, _SHARED, _GROWS = 0x1_0000, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0x21, 0x100
LISTENING = ("socket", "bind", "listen", "accept", "accept4")
"""Calls of a process that has a listener; `connect` stays refused."""
DEVICE_CONDITIONS = 4
"""First conditions on arguments, which hold for processes with accelerators, too."""
Condition = tuple[tuple[int, int], int, int, int, bool]
"""Numbers of a call; word of its arguments (two each), mask, value; whether what is equal to the value is refused."""
_UNIX_STREAMS: list[Condition] = [((41, 198), 0, 0xFFFF_FFFF, 1, False), ((41, 198), 2, 0xB, 1, False)]
"""Sockets of a process that listens: AF_UNIX, of the types with connections."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of a process. `memory_bytes` 0: as it has. `readable`: files and folders, next to Python.

    `readable` None, for trials: all that its user can read. Its addresses and descriptors are not bounded then.
    `devices`: it uses an accelerator, whose driver needs device nodes, shared memory, addresses and files that are not
    known beforehand: only processes, other processes' memory, and changes of the system are refused.
    `listens`: its engine cannot do without a listener: UNIX sockets that connect to nothing, and have no file (where
    the kernel has Landlock).
    """

    memory_bytes: int = 0
    readable: tuple[str, ...] | None = ()
    descriptors: int = 64
    nice: int = 5
    devices: bool = False
    listens: bool = False


class SandboxError(Exception):
    """The process cannot be confined: foreign code must not run."""


def lacking() -> tuple[str, ...]:
    """Return what this kernel cannot bound, in words. Raises SandboxError where foreign code must not run."""
    if platform.machine() not in _ARCHITECTURES or sys.byteorder != "little" or sys.maxsize < 2**32:
        raise SandboxError(f"no filter of system calls is known for this processor ({platform.machine()})")
    version = _landlock_version()
    if version < LEAST_LANDLOCK:
        return ("no Landlock: it can read every file that the gateway can read",)
    return ()


def enter(limits: SandboxLimits) -> tuple[str, ...]:
    """Confine this process, which has one thread, for good; return what `lacking` does. Raises SandboxError."""
    with suppress(OSError):  # a read-only /proc
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    os.nice(limits.nice)  # these two hold for a process that cannot be confined, too
    missing = lacking()
    if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208  other threads would stay free
        raise SandboxError("the process has threads already")
    has_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0]
    memory_bytes = limits.memory_bytes or (UNBOUNDED_BYTES if has_bytes == resource.RLIM_INFINITY else has_bytes)
    bounds = {resource.RLIMIT_DATA: memory_bytes, resource.RLIMIT_CORE: 0}
    if not limits.devices:
        bounds[resource.RLIMIT_NPROC] = _own_threads() + THREADS
        if limits.readable is not None:
            bounds |= {
                resource.RLIMIT_AS: memory_bytes + ADDRESSES_BYTES,
                resource.RLIMIT_NOFILE: limits.descriptors,
            }
    for what, most in bounds.items():
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_PDEATHSIG, signal.SIGKILL), (PR_SET_NO_NEW_PRIVS, 1)):
        if libc.prctl(option, value, 0, 0, 0):
            raise SandboxError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")
    if limits.readable is not None:  # root may try a file of another user
        _drop_capabilities(libc)
    restricts = limits.readable is not None and not limits.devices
    if restricts and not missing:
        _restrict_files(libc, (*_python(), *(limits.readable or ())))
    elif limits.listens and not missing:
        _restrict_files(libc, (), SOCKET_FILES)
    _filter_calls(libc, devices=limits.devices, listens=limits.listens)
    return missing if restricts else ()


def program(machine: str, pid: int, *, devices: bool = False, listens: bool = False) -> bytes:
    """Return the filter of a machine's calls, of struct sock_filter each (linux/filter.h). The process is `pid`."""
    allowed = (*(_DRIVERS.split() if devices else ()), *(LISTENING if listens else ()))
    audit, column = _ARCHITECTURES[machine]
    words = [_load(4), _skip_if(audit, 1, 0), _return(KILL), _load(0)]
    if machine == "x86_64":
        words += [_statement(0x35, 0, 1, X32), _return(KILL)]  # calls of the x32 interface have other numbers
    fields = _REFUSED.split()
    for place in range(0, len(fields), 3):
        if (number := fields[place + 1 + column]) != "-" and fields[place] not in allowed:
            words += [_skip_if(int(number), 0, 1), _return(REFUSE | errno.EPERM)]
    for numbers in _ABSENT:
        words += [_skip_if(numbers[column], 0, 1), _return(REFUSE | errno.ENOSYS)]
    conditions = _conditions(pid)[: DEVICE_CONDITIONS if devices else None]
    for numbers, word, mask, value, is_refused in conditions + (_UNIX_STREAMS if listens and not devices else []):
        if numbers[column] >= 0:
            jumps = (0, 1) if is_refused else (1, 0)
            words += [_skip_if(numbers[column], 0, 5), _load(16 + 4 * word), _statement(0x54, 0, 0, mask)]
            words += [_skip_if(value, *jumps), _return(REFUSE | errno.EPERM), _load(0)]
    return b"".join([*words, _return(ALLOW)])


def _conditions(pid: int) -> list[Condition]:
    every = 0xFFFF_FFFF
    conditions: list[Condition] = [
        ((56, 220), 0, _THREAD, _THREAD, False),  # clone: threads only
        ((62, 129), 0, every, pid, False),  # kill, tgkill: itself only
        ((234, 131), 0, every, pid, False),
        ((157, 167), 0, every, PR_SET_PDEATHSIG, True),  # it ends with the gateway
        ((203, 122), 0, every, 0, False),  # sched_setaffinity of others
        ((302, 261), 4, every, 0, False),  # prlimit64 with a new limit, at an address in two words
        ((302, 261), 5, every, 0, False),
        ((13, 134), 0, every, signal.SIGXCPU, True),  # rt_sigaction: and at its limit of CPU time
        ((53, 199), 2, 0xB, 1, False),  # socketpair: types 1 and 5; datagrams can be sent to any address
        ((9, 222), 6, _SHARED, _SHARED, True),  # mmap of shared memory without a file, and of what grows like a
        ((9, 222), 6, _GROWS, _GROWS, True),  # stack: RLIMIT_DATA counts neither
        ((2, -1), 2, _WRITES, 0, False),  # open, openat: for reading only
        ((257, 56), 4, _WRITES, 0, False),
    ]
    # fcntl F_SETOWN, F_SETSIG, F_SETOWN_EX; ioctl FIOSETOWN, SIOCSPGRP, TIOCSTI: signals and input to others
    conditions += [((72, 25), 2, every, command, True) for command in (8, 10, 15)]
    return conditions + [((16, 29), 2, every, command, True) for command in (0x8901, 0x8902, 0x5412)]


def _statement(code: int, yes: int, no: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def _load(offset: int) -> bytes:
    return _statement(0x20, 0, 0, offset)  # BPF_LD | BPF_W | BPF_ABS


def _skip_if(value: int, yes: int, no: int) -> bytes:
    return _statement(0x15, yes, no, value)  # BPF_JMP | BPF_JEQ | BPF_K


def _return(value: int) -> bytes:
    return _statement(0x06, 0, 0, value)  # BPF_RET | BPF_K


def _filter_calls(libc: ctypes.CDLL, *, devices: bool, listens: bool) -> None:
    """Install the filter by prctl(2), which service managers of older systems allow, unlike seccomp(2)."""
    code = program(platform.machine(), os.getpid(), devices=devices, listens=listens)
    content = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(content))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(fprog), 0, 0):
        raise SandboxError(f"the filter of system calls is refused: {os.strerror(ctypes.get_errno())}")


def _landlock_version() -> int:
    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))  # landlock_create_ruleset(2); -1: none


def _restrict_files(libc: ctypes.CDLL, readable: Sequence[str], only: int = 0) -> None:
    """Leave nothing of the file system but reading below `readable`; no new connections, and no signals to others.

    `only`: take away these rights, and nothing else.
    """
    version = _landlock_version()
    rights = only or (1 << FILE_RIGHTS[min(version, len(FILE_RIGHTS) - 1)]) - 1
    handled = struct.pack("QQQ", rights, *((0, 0) if only else (3 * (version >= 4), 3 * (version >= SCOPES))))
    size = 24 if version >= SCOPES else 16 if version >= 4 else 8
    ruleset = libc.syscall(444, ctypes.c_char_p(handled), ctypes.c_size_t(size), 0)
    for path in readable:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # what is not there cannot be read
        allowed = READ_FILE | (READ_FOLDER if os.path.isdir(path) else 0)  # noqa: PTH112
        rule = struct.pack("=Qi", allowed, place)
        added = libc.syscall(445, ruleset, 1, ctypes.c_char_p(rule), 0)
        os.close(place)
        if added:
            raise SandboxError(f"Landlock refuses {path}: {os.strerror(ctypes.get_errno())}")
    if ruleset < 0 or libc.syscall(446, ruleset, 0):
        raise SandboxError(f"Landlock is refused: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def _python() -> tuple[str, ...]:
    """Return where the interpreter, its packages and system libraries are, and what libraries read of the machine."""
    paths = {sys.prefix, sys.base_prefix, *(p for p in sysconfig.get_paths().values()), *filter(_is_packages, sys.path)}
    machine = ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom")
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
    return (*sorted(paths - {"/", "/usr", "/usr/local"}), *system, *machine)


def _is_packages(path: str) -> bool:
    return os.path.basename(path.rstrip("/")) in {"site-packages", "dist-packages"}  # noqa: PTH119


def _own_threads() -> int:
    """Return how many threads this user has, as RLIMIT_NPROC counts them."""
    count, uid = 0, os.getuid()
    for process in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            count += os.stat(f"/proc/{process}").st_uid == uid and len(os.listdir(f"/proc/{process}/task"))  # noqa: PTH116, PTH208
    return count


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up what root may do beyond its own files; without effect for others."""
    header, nothing = struct.pack("Ii", 0x2008_0522, 0), bytes(24)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(nothing)) and os.geteuid() == 0:
        raise SandboxError("root cannot give up its capabilities here; run the gateway as a user of its own")
