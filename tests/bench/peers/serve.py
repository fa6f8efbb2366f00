"""The peer's end of the line: JSON commands on stdin, JSON answers on stdout. Runs in the peers' environment: standard library only."""
import json, os, sys, time, traceback


def serve(start):
    "Answer commands with the environment that `start()` makes: `{'do': method, ...arguments}` -> `{'result': ...}` or `{'error': ...}`."
    answers = os.fdopen(os.dup(1), 'w', buffering=1)
    os.dup2(2, 1)  # what libraries print must not get between the answers
    env = _try(answers, start)
    for line in sys.stdin if env else ():
        command = json.loads(line)
        method = getattr(env, command.pop('do'))
        _try(answers, lambda: method(**command))
    if env: env.close()


def _try(answers, f):
    try: result = f()
    except Exception as e: return print(json.dumps(dict(error=f'{type(e).__name__}: {e}'.splitlines()[0], trace=traceback.format_exc())), file=answers)
    plain = isinstance(result, (dict, list, int, float, str, type(None)))
    print(json.dumps(dict(result=result if plain else 'ready')), file=answers)
    return result


def timed(f):
    "Milliseconds that `f()` took."
    t = time.perf_counter()
    f()
    return 1000 * (time.perf_counter() - t)
