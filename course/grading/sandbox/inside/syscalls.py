"""The system calls that the student's process is refused, and the conditions under which others are allowed.

The process may compute, start threads, read, and write to files that are already open. A refused call raises
PermissionError.
"""

from __future__ import annotations

import os
from typing import NamedTuple

MACHINES = ("x86_64", "aarch64")

#: Name → number on each of MACHINES; None if the machine does not have the call.
REFUSED: dict[str, tuple[int, int | None]] = {
    # Processes: the process cannot start any, and cannot affect any other.
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "setpriority": (141, 140), "ioprio_set": (251, 30),
    # The network, and objects that outlive a process.
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242), "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "flock": (73, 32),
    # Memory that the limit on address space does not count.
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # Files: none can be created, changed or removed.
    "creat": (85, None), "truncate": (76, 45), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "link": (86, None), "linkat": (265, 37),
    "unlink": (87, None), "unlinkat": (263, 35), "symlink": (88, None), "symlinkat": (266, 36),
    "mknod": (133, None), "mknodat": (259, 33), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    # Namespaces, mounts, and the most powerful kernel interfaces.
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "io_submit": (209, 2),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # Calls that only root can use.
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "syslog": (103, 116), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
    "personality": (135, 92),
}
#: Answered with "no such call", so that the C library falls back to an older call whose arguments can be inspected.
UNKNOWN: dict[str, tuple[int, int]] = {"clone3": (435, 435), "openat2": (437, 437)}
#: Calls from this number on are newer than this list, so their effect is unknown. They get the same answer.
FIRST_NEWER = 470


class Check(NamedTuple):
    """Holds if the argument's bits under ``mask`` are one of ``values``; with ``is_refused``, if they are not."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    is_refused: bool = False


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x10000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
#: Setting which process gets a file's signals, and which signals; locks; leases; watching a folder.
_FCNTL_REFUSED = (6, 7, 8, 10, 15, 37, 38, 1024, 1026)
#: The same by ioctl, and inserting input into a terminal.
_IOCTL_REFUSED = (0x8901, 0x8902, 0x5412, 0x541C)
_SET_PARENT_DEATH_SIGNAL = 1


def conditions(own_pid: int) -> dict[str, tuple[tuple[int, int | None], tuple[Check, ...]]]:
    """Return for each name its numbers, and the checks that must hold for the call to be allowed."""
    itself = (Check(0, (0, own_pid)),)
    return {
        "clone": ((56, 220), (Check(0, (_CLONE_THREAD,), mask=_CLONE_THREAD),)),
        "open": ((2, None), (Check(1, (0,), mask=_WRITING),)),
        "openat": ((257, 56), (Check(2, (0,), mask=_WRITING),)),
        "kill": ((62, 129), (Check(0, (own_pid,)),)),  # abort() sends a signal to its own process
        "tgkill": ((234, 131), (Check(0, (own_pid,)),)),
        "socketpair": ((53, 199), (Check(0, (_AF_UNIX,)), Check(1, (_SOCK_STREAM,), mask=_SOCK_TYPE))),  # asyncio
        "fcntl": ((72, 25), (Check(1, _FCNTL_REFUSED, is_refused=True),)),
        "ioctl": ((16, 29), (Check(1, _IOCTL_REFUSED, is_refused=True),)),
        "prctl": ((157, 167), (Check(0, (_SET_PARENT_DEATH_SIGNAL,), is_refused=True),)),
        "prlimit64": ((302, 261), itself),
        "sched_setaffinity": ((203, 122), itself),
        "sched_setscheduler": ((144, 119), itself),
        "sched_setparam": ((142, 118), itself),
        "sched_setattr": ((314, 274), itself),
    }
