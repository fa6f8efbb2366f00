"The device's end of the Android Debug Bridge over TCP: messages, authentication, streams. After adb's own protocol.txt."
import asyncio
import base64
import os
import struct

HEADER = struct.Struct('<4sIIIII')  # command, two arguments, length and sum of the data, the command's bits turned over
VERSION, MAX_DATA = 0x01000001, 256 * 1024
TOKEN, SIGNATURE, PUBLIC_KEY = 1, 2, 3
SHA1_PREFIX = bytes.fromhex('3021300906052b0e03021a05000414')


def message(command, arg0, arg1, data=b''):
    return HEADER.pack(command, arg0, arg1, len(data), sum(data) & 0xffffffff, int.from_bytes(command, 'little') ^ 0xffffffff) + data


def read_key(text):
    "Modulus and exponent of Android's RSA public key format: base64 of words, n0inv, modulus, rr, exponent."
    blob = base64.b64decode(text.split()[0])
    words = struct.unpack_from('<I', blob)[0]
    return int.from_bytes(blob[8:8 + 4 * words], 'little'), struct.unpack_from('<I', blob, 8 + 8 * words)[0]


def signed(key, token, signature):
    "True where `signature` is that of `token` under `key`: PKCS #1 v1.5, the token in place of a SHA-1."
    n, e = key
    size = (n.bit_length() + 7) // 8
    tail = b'\0' + SHA1_PREFIX + token
    return pow(int.from_bytes(signature, 'big'), e, n).to_bytes(size, 'big') == b'\0\1' + b'\xff' * (size - 2 - len(tail)) + tail


class Closed(Exception): "The other end has closed the stream."


class Stream:
    "One service under way; every write waits until the host has taken the one before."
    def __init__(self, link, local, remote):
        self.link, self.local, self.remote = link, local, remote
        self.buffer, self.more, self.ready, self.gone = bytearray(), asyncio.Event(), asyncio.Event(), False
        self.ready.set()

    async def write(self, data):
        for i in range(0, len(data), MAX_DATA):
            await self.ready.wait()
            if self.gone: raise Closed
            self.ready.clear()
            await self.link.send(b'WRTE', self.local, self.remote, data[i:i + MAX_DATA])

    async def read(self, n):
        while len(self.buffer) < n:
            if self.gone: raise Closed
            self.more.clear()
            await self.more.wait()
        data = bytes(self.buffer[:n])
        del self.buffer[:n]
        return data

    def feed(self, data):
        self.buffer += data
        self.more.set()

    def end(self):
        self.gone = True
        self.more.set()
        self.ready.set()


class Link:
    "One connection of an adb server."
    def __init__(self, phone, reader, writer):
        self.phone, self.reader, self.writer, self.streams, self.tasks = phone, reader, writer, {}, set()
        self.token, self.next = os.urandom(20), 1

    async def send(self, *args):
        self.writer.write(message(*args))
        await self.writer.drain()

    async def run(self):
        try:
            while True:
                command, a, b, length, _, magic = HEADER.unpack(await self.reader.readexactly(HEADER.size))
                if magic != int.from_bytes(command, 'little') ^ 0xffffffff: raise ValueError('not the Android Debug Bridge')
                await getattr(self, command.decode().lower())(a, b, await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, AttributeError): pass
        finally: self.drop()

    def drop(self):
        "Cut the connection as a pulled cable does."
        for stream in self.streams.values(): stream.end()
        for task in self.tasks: task.cancel()
        self.writer.transport.abort()

    async def cnxn(self, version, size, banner):
        if self.phone.keys is None: await self.welcome()
        else: await self.send(b'AUTH', TOKEN, 0, self.token)

    async def welcome(self):
        if self.phone.garbled: return await self.send(b'JUNK', 1, 2, os.urandom(100))
        await self.send(b'CNXN', VERSION, MAX_DATA, self.phone.banner.encode())

    async def auth(self, kind, _, data):
        if kind == SIGNATURE and any(signed(k, self.token, data) for k in self.phone.keys): return await self.welcome()
        if kind == SIGNATURE: return await self.send(b'AUTH', TOKEN, 0, self.token)
        if kind == PUBLIC_KEY and self.phone.trusting:
            self.phone.keys.append(read_key(data.rstrip(b'\0')))
            await self.welcome()

    async def open(self, remote, _, name):
        stream = Stream(self, self.next, remote)
        self.next += 1
        self.streams[stream.local] = stream
        task = asyncio.ensure_future(self.serve(name.rstrip(b'\0').decode(errors='replace'), stream))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def serve(self, name, stream):
        try:
            if not self.phone.knows(name): return
            await self.send(b'OKAY', stream.local, stream.remote)
            await self.phone.serve(name, stream)
            await stream.ready.wait()
        except (Closed, ConnectionError): pass
        finally:
            self.streams.pop(stream.local, None)
            if not self.writer.is_closing(): await self.send(b'CLSE', stream.local, stream.remote)

    async def wrte(self, remote, local, data):
        if stream := self.streams.get(local):
            stream.feed(data)
            await self.send(b'OKAY', local, remote)

    async def okay(self, remote, local, _):
        if stream := self.streams.get(local): stream.ready.set()

    async def clse(self, remote, local, _):
        if stream := self.streams.get(local): stream.end()
