"""An application in the format of WebArena-Infinity: static files and the state that the page pushes."""
import json
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

STATE = {}   # 'seed': the first state pushed; 'now': the last


class Handler(SimpleHTTPRequestHandler):
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path != '/api/state': return super().do_GET()
        if 'now' in STATE: self.answer(200, STATE['now'])
        else: self.answer(404, dict(error='no state yet: open the page in a browser'))

    def do_PUT(self):
        pushed = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        STATE.setdefault('seed', pushed)
        STATE['now'] = pushed
        self.answer(200, dict(status='ok'))

    def do_POST(self):
        if 'seed' in STATE: STATE['now'] = STATE['seed']
        self.answer(200, dict(status='ok'))

    def log_message(self, *args): pass


if __name__ == '__main__':
    port = int(sys.argv[sys.argv.index('--port') + 1]) if '--port' in sys.argv else 8000
    ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()
