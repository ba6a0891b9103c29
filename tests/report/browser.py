"""browser.py: a headless Chromium that a test drives through its DevTools protocol, with nothing but Python.

    with Browser() as browser:
        browser.open('file:///tmp/report.html', width=1200, height=800)
        browser.value('document.title')
        browser.mouse('mousePressed', 10, 20)
        browser.errors      what the page complained of

find() gives the program, or None: then tests are skipped.
"""
import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

NAMES = ('chromium-headless-shell', 'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')


def find():
    named = os.environ.get('TESSERA_BROWSER')
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Socket:
    """A WebSocket of RFC 6455, as far as a browser's debugger needs it."""

    def __init__(self, port, path):
        self.socket = socket.create_connection(('127.0.0.1', port))
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f'GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n'
                             f'Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n').encode())
        self.data = b''
        while b'\r\n\r\n' not in self.data:
            self.data += self.some()
        head, self.data = self.data.split(b'\r\n\r\n', 1)
        if b' 101 ' not in head:
            raise OSError(head.decode(errors='replace'))

    def some(self):
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise OSError('the browser has gone')
        return piece

    def take(self, n):
        while len(self.data) < n:
            self.data += self.some()
        piece, self.data = self.data[:n], self.data[n:]
        return piece

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        head = bytes([0x81]) + (bytes([0x80 | n]) if n < 126 else bytes([0xfe]) + struct.pack('>H', n) if n < 65536 else
                                bytes([0xff]) + struct.pack('>Q', n))
        whole = (mask * (n // 4 + 1))[:n]
        self.socket.sendall(head + mask + (int.from_bytes(data, 'big') ^ int.from_bytes(whole, 'big')).to_bytes(n, 'big'))

    def receive(self):
        text = b''
        while True:
            first, second = self.take(2)
            n = second & 127
            if n == 126:
                n = struct.unpack('>H', self.take(2))[0]
            elif n == 127:
                n = struct.unpack('>Q', self.take(8))[0]
            text += self.take(n)
            if first & 15 == 8:
                raise OSError('the browser has closed the connection')
            if first & 0x80:
                return text.decode()


class Browser:
    def __init__(self, program=None):
        self.folder = tempfile.mkdtemp()
        self.program = program or find()
        self.number = 0
        self.errors = []
        self.requests = []

    def __enter__(self):
        said = open(os.path.join(self.folder, 'said'), 'wb')
        self.process = subprocess.Popen(
            [self.program, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
             '--hide-scrollbars', '--force-color-profile=srgb', '--disable-background-networking',
             '--remote-debugging-port=0', f'--user-data-dir={self.folder}/profile', 'about:blank'],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
        said.close()
        where = os.path.join(self.folder, 'profile', 'DevToolsActivePort')
        end = time.monotonic() + 120
        while not (os.path.exists(where) and open(where).read().count('\n') >= 1):
            if self.process.poll() is not None or time.monotonic() > end:
                text = open(os.path.join(self.folder, 'said'), errors='replace').read()
                self.__exit__(None, None, None)
                raise OSError(f'{self.program} does not start: {text[-400:]}')
            time.sleep(0.02)
        port, path = open(where).read().split('\n')[:2]
        self.socket = Socket(int(port), path)
        self.session = None
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.call(domain + '.enable')
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, message):
        method, what = message.get('method'), message.get('params', {})
        if method == 'Runtime.exceptionThrown':
            detail = what['exceptionDetails']
            self.errors.append(detail.get('exception', {}).get('description', detail['text']))
        elif method == 'Runtime.consoleAPICalled' and what['type'] in ('error', 'warning', 'assert'):
            self.errors.append(' '.join(str(a.get('value', a.get('description'))) for a in what['args']))
        elif method == 'Log.entryAdded' and what['entry']['level'] in ('error', 'warning'):
            self.errors.append(what['entry']['text'])
        elif method == 'Network.requestWillBeSent':
            self.requests.append(what['request']['url'])

    def call(self, method, **params):
        self.number += 1
        message = {'id': self.number, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get('id') == self.number:
                if 'error' in answer:
                    raise OSError(f"{method}: {answer['error']}")
                return answer['result']
            self.note(answer)

    def size(self, width, height, scale=1):
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def media(self, theme='light', media=''):
        self.call('Emulation.setEmulatedMedia', media=media, features=[{'name': 'prefers-color-scheme', 'value': theme}])

    def open(self, address, width=1280, height=900, theme='light', scale=1):
        self.size(width, height, scale)
        self.media(theme)
        self.call('Page.navigate', url='about:blank')
        self.call('Page.navigate', url=address)
        self.until('document.readyState === "complete"')

    def value(self, script):
        answer = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer['result'].get('value')

    def until(self, script, seconds=60):
        """Waits for a condition of the page."""
        end = time.monotonic() + seconds
        while not self.value(script):
            if time.monotonic() > end:
                raise AssertionError('never came true: ' + script)
            time.sleep(0.02)

    def frames(self, n=2):
        """Until the page has drawn."""
        self.value(f'new Promise((done) => {{ let n = {n}; const f = () => (n-- ? requestAnimationFrame(f) : done(1)); f(); }})')

    def mouse(self, kind, x, y, **more):
        self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, **more)

    def click(self, x, y, count=1):
        for kind in ('mousePressed', 'mouseReleased'):
            self.mouse(kind, x, y, button='left', clickCount=count)

    def key(self, key):
        self.call('Input.dispatchKeyEvent', type='keyDown', key=key, text=key if len(key) == 1 else '')
        self.call('Input.dispatchKeyEvent', type='keyUp', key=key)

    def picture(self, path=None, whole=False):
        data = base64.b64decode(self.call('Page.captureScreenshot', format='png', captureBeyondViewport=whole)['data'])
        if path:
            with open(path, 'wb') as out:
                out.write(data)
        return data
