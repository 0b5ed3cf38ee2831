"""A stand-in for other systems: a module that takes away from Python what only Linux has.

As `sitecustomize` in the folder of a project, it is at work in every process of an inner run, also in
those that ignore PYTHONPATH: a process with `-I` runs it first.
"""

SITECUSTOMIZE = r"""
import errno
import io
import os
import sys

SYSTEM = os.environ["STAND_IN_FOR"]
LINUX_ONLY = {
    "os": "sched_getaffinity sched_setaffinity sched_setscheduler pidfd_open memfd_create eventfd "
    "eventfd_read eventfd_write O_PATH unshare setns prlimit waitid splice",
    "signal": "pidfd_send_signal SIGRTMIN SIGRTMAX sigwaitinfo sigtimedwait",
    "select": "epoll",
    "socket": "SO_PEERCRED AF_NETLINK AF_VSOCK SOCK_CLOEXEC SOCK_NONBLOCK TCP_KEEPIDLE",
}
# pytest asks for the user's number where `sys.platform` is not "win32".
UNIX_ONLY = {
    "os": "fork forkpty register_at_fork killpg getpgid setpgid setsid uname nice mkfifo pread "
    "pwrite preadv sched_yield set_blocking wait wait3 wait4 waitpid WNOHANG getpriority openpty",
    "signal": "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGCONT SIGSTOP SIGBUS SIGPIPE "
    "SIGQUIT SIGXFSZ SIGWINCH setitimer alarm pause pthread_kill pthread_sigmask sigwait",
    "select": "poll",
    "socket": "AF_UNIX send_fds recv_fds SCM_RIGHTS CMSG_SPACE CMSG_LEN",
    "faulthandler": "register unregister",
}
UNIX_MODULES = "fcntl resource pwd grp termios tty pty readline syslog _posixshmem"


def take(names):
    for module, attributes in names.items():
        found = __import__(module)
        for name in attributes.split():
            if hasattr(found, name):
                delattr(found, name)


def hide_proc():
    def hidden(function):
        def call(path=".", *arguments, **options):
            if isinstance(path, (str, bytes, os.PathLike)):
                text = os.fsdecode(path)
                if text == "/proc" or text.startswith("/proc/"):
                    raise FileNotFoundError(errno.ENOENT, "hidden", text)
            return function(path, *arguments, **options)

        return call

    import builtins

    builtins.open = io.open = hidden(io.open)
    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access"):
        setattr(os, name, hidden(getattr(os, name)))


def hide_prctl():
    import ctypes

    look_up = ctypes.CDLL.__getattr__

    def find(library, name):
        if name == "prctl":
            raise AttributeError(name)
        return look_up(library, name)

    ctypes.CDLL.__getattr__ = find


def be_windows():
    sys.modules.update(dict.fromkeys(UNIX_MODULES.split()))
    take({"select": UNIX_ONLY["select"]})
    # These keep what they need of it.
    import socket
    import subprocess
    import tempfile

    take(UNIX_ONLY)
    send = os.kill

    def kill(process, number):
        assert number, "signal 0 is Ctrl-C on Windows"
        send(process, number)

    def pair():
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            return one, server.accept()[0]

    os.kill, socket.socketpair = kill, pair


def reach_isolated_processes():
    import subprocess

    start = subprocess.Popen.__init__

    def begin(self, line, *arguments, **options):
        assert SYSTEM == "macOS" or not options.get("pass_fds"), "not supported on Windows"
        if "-I" in line:
            at = line.index("-c") + 1
            first = f"exec(open({__file__!r}).read(), dict(__file__={__file__!r}))"
            line = [*line[:at], f"{first}; {line[at]}", *line[at + 1 :]]
        start(self, line, *arguments, **options)

    subprocess.Popen.__init__ = begin


take({"select": LINUX_ONLY["select"]})
hide_proc()
hide_prctl()
take(LINUX_ONLY)
if SYSTEM == "Windows":
    be_windows()
reach_isolated_processes()
if SYSTEM == "macOS":
    sys.platform = "darwin"
"""
