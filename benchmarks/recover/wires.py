"""A network between processes of one machine whose links can be made to fail: every process is in a network namespace of its own, with a TUN device, and a router in between
carries the packets from one to another.

A link that swallows loses every packet; a flipped bit is in the payload of a TCP packet whose checksum is made right again, as by a broken adapter: only who checks the message
itself can find it. It is flipped in every copy of that byte which TCP sends: the receiver may have thrown the first away. Needs root and /dev/net/tun. Only the standard library is needed.
"""

import ctypes
import fcntl
import mmap
import multiprocessing
import os
import random
import select
import signal
import socket
import struct
import time

MTU = 60000
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 1, 0x1000, 0x40000000
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU, SIOCSIFTXQLEN, IFF_UP = 0x8914, 0x8916, 0x891C, 0x8922, 0x8943, 1
SIZE_OF_HELLO, SIZE_OF_CHALLENGE, SIZE_OF_PROOF = 120, 84, 64  # what callers and called say before messages (comm/tcp/tcp_greeting.h)
CHANNEL_AT = 28  # Hello::channel; 0: messages of a world
SYN, ACK = 0x02, 0x10
SEQUENCE = 1 << 32  # numbers of bytes begin again there
TCP = 6


def in_ifreq(host):
    """A struct sockaddr_in, in what an ioctl of an interface takes."""
    return struct.pack("=HH4s16x", socket.AF_INET, 0, socket.inet_aton(host))


def address(node):
    return f"10.77.0.{node + 1}"


class Rules:
    """What the router does, in memory that processes share: a byte for each pair (nothing passes), and for each sender a flipped bit (see `OfSender`)."""

    # Whether the next message is to have one, the receiver of it, how often the byte has passed, and when it first did.
    OfSender = struct.Struct("<BBHd")

    def __init__(self, nodes):
        self.nodes = nodes
        self.memory = mmap.mmap(-1, nodes * nodes + self.OfSender.size * nodes)

    def swallow(self, sender, receiver, is_on):
        self.memory[sender * self.nodes + receiver] = int(is_on)

    def swallows(self, sender, receiver):
        return self.memory[sender * self.nodes + receiver]

    def _at(self, sender):
        return self.nodes * self.nodes + self.OfSender.size * sender

    def flip(self, sender):
        self.OfSender.pack_into(self.memory, self._at(sender), 1, 0, 0, 0.0)

    def is_to_flip(self, sender):
        return self.memory[self._at(sender)]

    def flipped(self, sender, receiver):
        self.OfSender.pack_into(self.memory, self._at(sender), 0, receiver, 1, time.time())

    def flipped_again(self, sender):
        is_to_come, receiver, copies, when = self.OfSender.unpack_from(self.memory, self._at(sender))
        if not is_to_come:
            self.OfSender.pack_into(self.memory, self._at(sender), 0, receiver, copies + 1, when)

    def flipped_at(self, sender):
        """Nothing while no message has come."""
        is_to_come, _, _, when = self.OfSender.unpack_from(self.memory, self._at(sender))
        return None if is_to_come else when

    def flipped_for(self, sender):
        """The receiver, and how often the byte was sent."""
        return self.OfSender.unpack_from(self.memory, self._at(sender))[1:3]


def with_bit_flipped(packet, payload_at, bit):
    """The same packet with the TCP checksum of what it carries now."""
    packet = bytearray(packet)
    at = payload_at + bit // 8
    even = at - (at - 20) % 2  # of the 16-bit words that are summed; the IP header has 20 bytes

    def word():
        return (packet[even] << 8) + (packet[even + 1] if even + 1 < len(packet) else 0)

    before = word()
    packet[at] ^= 1 << (bit % 8)
    checksum_at = 20 + 16
    total = (~struct.unpack_from("!H", packet, checksum_at)[0] & 0xFFFF) + (~before & 0xFFFF) + word()
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", packet, checksum_at, ~total & 0xFFFF)
    return bytes(packet)


class Way:
    """One direction of a connection. Bytes are counted from its beginning."""

    def __init__(self, first, greeting):
        self.first, self.greeting = first, greeting  # the number of the first byte; how many come before messages
        self.is_of_world = False
        self.passed = 0
        self.damage = None  # a byte, and the bit of it that is flipped

    def place_of(self, number):
        ahead = (number - self.first - self.passed) % SEQUENCE
        return self.passed + (ahead if ahead < SEQUENCE // 2 else ahead - SEQUENCE)


class Router:
    """Runs in a process of its own until it is ended."""

    def __init__(self, devices, rules):
        self.devices, self.rules = devices, rules
        self.ways = {}  # by (node, port, node, port)

    def run(self):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        node_of = {device: node for node, device in enumerate(self.devices)}
        while True:
            for device in select.select(self.devices, [], [])[0]:
                try:
                    packet = os.read(device, 65536)
                except OSError:
                    continue
                self.carry(packet, node_of[device])

    def carry(self, packet, sender):
        receiver = packet[19] - 1 if packet[0] == 0x45 and packet[16:19] == b"\x0a\x4d\x00" else -1
        if not 0 <= receiver < len(self.devices) or self.rules.swallows(sender, receiver):
            return
        if packet[9] == TCP:
            packet = self.look_at(packet, sender, receiver)
        try:
            os.write(self.devices[receiver], packet)
        except OSError:  # the queue is full: TCP sends it again
            pass

    def look_at(self, packet, sender, receiver):
        payload_at = 20 + (packet[32] >> 4) * 4
        ports = struct.unpack_from("!HH", packet, 20)
        name = (sender, ports[0], receiver, ports[1])
        number = struct.unpack_from("!I", packet, 24)[0]
        if packet[33] & SYN:
            is_called = packet[33] & ACK
            self.ways[name] = Way((number + 1) % SEQUENCE, SIZE_OF_CHALLENGE if is_called else SIZE_OF_HELLO + SIZE_OF_PROOF)
            return packet
        way, bytes_in = self.ways.get(name), len(packet) - payload_at
        if way is None or bytes_in == 0:
            return packet
        begin = way.place_of(number)
        end = begin + bytes_in
        if begin == 0 and end >= CHANNEL_AT + 4 and way.greeting != SIZE_OF_CHALLENGE:
            self.greet(name, is_of_world=struct.unpack_from("<i", packet, payload_at + CHANNEL_AT)[0] == 0)
        new = max(begin, way.passed, way.greeting)
        way.passed = max(way.passed, end)
        if way.is_of_world and new < end and self.rules.is_to_flip(sender):
            way.damage = (random.randrange(new, end), random.randrange(8))
            self.rules.flipped(sender, receiver)
        elif way.damage is None or not begin <= way.damage[0] < end:
            return packet
        else:
            self.rules.flipped_again(sender)
        return with_bit_flipped(packet, payload_at, 8 * (way.damage[0] - begin) + way.damage[1])

    def greet(self, name, is_of_world):
        for one in (name, name[2:] + name[:2]):
            if one in self.ways:
                self.ways[one].is_of_world = is_of_world


class Network:
    """Namespaces with address(0), ... , which go with the last process that is in them."""

    def __init__(self, nodes):
        self.nodes, self.rules = nodes, Rules(nodes)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.namespaces = []
        devices = [self._make_node(node) for node in range(nodes)]
        self.router = multiprocessing.get_context("fork").Process(target=Router(devices, self.rules).run, daemon=True)
        self.router.start()
        for device in devices:
            os.close(device)

    def enter(self, node):
        """For this thread: what it starts is there."""
        self._check(self.libc.setns(self.namespaces[node], CLONE_NEWNET), "enter a network namespace")

    def _check(self, result, what):
        if result != 0:
            raise OSError(ctypes.get_errno(), f"cannot {what}")

    def _make_node(self, node):
        self._check(self.libc.unshare(CLONE_NEWNET), "make a network namespace")
        try:
            self.namespaces.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
            device = os.open("/dev/net/tun", os.O_RDWR)  # belongs to where it is opened
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
                for request, value in [(SIOCSIFADDR, in_ifreq(address(node))), (SIOCSIFNETMASK, in_ifreq("255.255.255.0"))]:
                    fcntl.ioctl(own, request, b"wire".ljust(16, b"\0") + value)
                for request, value in [(SIOCSIFMTU, MTU), (SIOCSIFTXQLEN, 5000), (SIOCSIFFLAGS, IFF_UP)]:
                    fcntl.ioctl(own, request, struct.pack("16si20x", b"wire", value))
                fcntl.ioctl(own, SIOCSIFFLAGS, struct.pack("16si20x", b"lo", IFF_UP))
        finally:
            self._check(self.libc.setns(self.home, CLONE_NEWNET), "leave a network namespace")
        return device

    def close(self):
        self.router.terminate()
        self.router.join()
        for own in [*self.namespaces, self.home]:
            os.close(own)
