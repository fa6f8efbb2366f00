"""BrowserGym's MiniWoB++ environment, driven through its public API. Runs in the peers' environment."""
import os, pathlib, time
from importlib.metadata import version

import gymnasium as gym
import miniwob

os.environ.setdefault('MINIWOB_URL', f'{(pathlib.Path(miniwob.__file__).parent/"html/miniwob").as_uri()}/')

import browsergym.miniwob
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.observation import extract_screenshot

from serve import serve, timed

SCALE = 1.5  # BrowserGym's screenshots of these pages are enlarged by this factor


class BrowserGym:
    "One environment at a time: `plain` as it comes, `undelayed` without its sleeps, `bare` without sleeps and without its extraction of DOM and accessibility tree."
    OPTIONS = dict(plain={}, undelayed=dict(slow_mo=0, pre_observation_delay=0.), bare=dict(slow_mo=0, pre_observation_delay=0., use_raw_page_output=True))

    def __init__(self, task='click-test-2'): self.task, self.envs = task, {}

    def make(self, variant):
        "The environment of a variant, reset once."
        if variant in self.envs: return self.envs[variant]
        args = ['--no-sandbox'] if os.geteuid() == 0 else []
        env = gym.make(f'browsergym/miniwob.{self.task}', action_mapping=HighLevelActionSet(subsets=['coord']).to_python_code, disable_env_checker=True,
            pw_chromium_kwargs=dict(executable_path=os.environ['UITARS_CHROMIUM'], chromium_sandbox=os.geteuid() != 0), **self.OPTIONS[variant])
        env.reset(seed=1)
        return self.envs.setdefault(variant, env)

    def screenshot(self, env, obs): return obs['screenshot'] if 'screenshot' in obs else extract_screenshot(env.unwrapped.page)

    def step(self, n, x, y, variant='plain'):
        "Milliseconds of `n` clicks that change nothing, each with its observation."
        env, times = self.make(variant), []
        for _ in range(n):
            t = time.perf_counter()
            obs, _, done, _, _ = env.step(f'mouse_click({x}, {y})')
            image = self.screenshot(env, obs)
            times.append(1000 * (time.perf_counter() - t))
        assert not done and not obs['last_action_error'], obs['last_action_error'] or 'the click ended the episode'
        assert image.ndim == 3
        return times

    def reset(self, seeds, variant='plain'):
        "Milliseconds of a reset with its first observation, one for each seed."
        env = self.make(variant)
        return [timed(lambda: self.screenshot(env, env.reset(seed=seed)[0])) for seed in seeds]

    def about(self): return dict(browsergym=version('browsergym-miniwob'), playwright=version('playwright'), chromium=self.make('plain').unwrapped.browser.version)

    def close(self):
        for env in self.envs.values(): env.close()


if __name__ == '__main__': serve(BrowserGym)
