"""A network between processes of one machine whose links can be made to fail: every process is in a network namespace of its own, with a TUN device, and a router in between
carries the packets from one to another.

A link that swallows loses every packet; a flipped bit is in the payload of a TCP packet whose checksum is made right again, as by a broken adapter: only who checks the message
itself can find it. Needs root and /dev/net/tun. Only the standard library is needed.
"""

import ctypes
import fcntl
import mmap
import multiprocessing
import os
import random
import select
import signal
import struct
import subprocess
import time

MTU = 60000
TUNSETIFF, IFF_TUN, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 1, 0x1000, 0x40000000
GREETING = struct.pack("<Q", 0x31656C6464654811)  # Hello::magic
CHANNEL_AT = 28  # Hello::channel; 0: messages of a world
TCP = 6


def address(node):
    return f"10.77.0.{node + 1}"


class Rules:
    """What the router does, in memory that processes share: a byte for each pair (nothing passes), and for each sender (its next message has a bit flipped) with when that was done."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.memory = mmap.mmap(-1, nodes * nodes + 9 * nodes)

    def swallow(self, sender, receiver, is_on):
        self.memory[sender * self.nodes + receiver] = int(is_on)

    def swallows(self, sender, receiver):
        return self.memory[sender * self.nodes + receiver]

    def _flip(self, sender):
        return self.nodes * self.nodes + 9 * sender

    def flip(self, sender):
        self.memory[self._flip(sender)] = 1

    def is_to_flip(self, sender):
        return self.memory[self._flip(sender)]

    def flipped(self, sender):
        at = self._flip(sender)
        self.memory[at + 1 : at + 9] = struct.pack("<d", time.time())
        self.memory[at] = 0

    def flipped_at(self, sender):
        """Nothing while no message has come."""
        at = self._flip(sender)
        return None if self.memory[at] else struct.unpack("<d", self.memory[at + 1 : at + 9])[0]


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


class Router:
    """Runs in a process of its own until it is ended."""

    def __init__(self, devices, rules):
        self.devices, self.rules = devices, rules
        self.of_worlds = set()  # connections, as (node, port, node, port) in both directions
        self.sent = {}  # by the same: up to where its bytes have passed

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
        if payload_at == len(packet):
            return packet
        ports = struct.unpack_from("!HH", packet, 20)
        way = (sender, ports[0], receiver, ports[1])
        begin = struct.unpack_from("!I", packet, 24)[0]
        is_new = way not in self.sent or (begin - self.sent[way]) % (1 << 32) < 1 << 31
        if is_new:
            self.sent[way] = (begin + len(packet) - payload_at) % (1 << 32)
        if packet[payload_at : payload_at + 8] == GREETING:
            channel = struct.unpack_from("<i", packet, payload_at + CHANNEL_AT)[0]
            back = (receiver, ports[1], sender, ports[0])
            for one in (way, back):
                (self.of_worlds.add if channel == 0 else self.of_worlds.discard)(one)
            return packet
        # What TCP sends twice the receiver throws away.
        if not is_new or not self.rules.is_to_flip(sender) or way not in self.of_worlds:
            return packet
        self.rules.flipped(sender)
        return with_bit_flipped(packet, payload_at, random.randrange(8 * (len(packet) - payload_at)))


class Network:
    """Namespaces hdlPID-0, ... with address(0), ... ."""

    def __init__(self, nodes):
        self.nodes, self.rules, self.name = nodes, Rules(nodes), f"hdl{os.getpid()}"
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
        devices = [self._make_node(node) for node in range(nodes)]
        self.router = multiprocessing.get_context("fork").Process(target=Router(devices, self.rules).run, daemon=True)
        self.router.start()
        for device in devices:
            os.close(device)

    def namespace(self, node):
        return f"{self.name}-{node}"

    def _enter(self, namespace):
        if self.libc.setns(namespace, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter a network namespace")

    def _make_node(self, node):
        def ip(*words):
            subprocess.run(["ip", "-n", self.namespace(node), *words], check=True)

        subprocess.run(["ip", "netns", "add", self.namespace(node)], check=True)
        with open(f"/run/netns/{self.namespace(node)}") as own:
            self._enter(own.fileno())
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)  # belongs to where it is opened
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
        finally:
            self._enter(self.home)
        ip("addr", "add", f"{address(node)}/24", "dev", "wire")
        ip("link", "set", "wire", "mtu", str(MTU), "txqueuelen", "5000", "up")
        ip("link", "set", "lo", "up")
        return device

    def close(self):
        self.router.terminate()
        self.router.join()
        for node in range(self.nodes):
            subprocess.run(["ip", "netns", "del", self.namespace(node)], check=False)
