"""miniwob's own gymnasium environment over Selenium, driven through its public API. Runs in the peers' environment."""
import os, time

import gymnasium as gym
import miniwob
from miniwob.action import ActionTypes

from serve import serve, timed

gym.register_envs(miniwob)
WHERE = "const r = document.getElementById(arguments[0]).getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2, " \
    "document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2).id == arguments[0]]"


class Selenium:
    "One environment; with `dom=False` its DOM extraction is switched off."
    def __init__(self, task='click-test-2'):
        self.env = gym.make(f'miniwob/{task}-v1').unwrapped
        self.driver = self.env.instance.driver
        self.driver.execute_script('core.EPISODE_MAX_TIME = 1e9')
        self.dom_script = self.driver.execute_script('return core.getDOMInfo.toString()')

    def use_dom(self, dom):
        "Extract the DOM at every observation (as it does by default), or hand over one empty element."
        empty = "function() { return {tag: 'BODY', ref: 1, left: 0, top: 0, width: 0, height: 0, children: [], classes: '', id: ''} }"
        self.driver.execute_script(f'core.getDOMInfo = {self.dom_script if dom else empty}')

    def click(self, x, y):
        return self.env.step(self.env.create_action(ActionTypes.CLICK_COORDS, coords=[x, y]))

    def step(self, n, x, y, dom=True):
        "Milliseconds of `n` clicks that change nothing, each with its observation."
        self.use_dom(dom)
        self.env.set_record_screenshots(True)
        self.env.reset(seed=1)
        times, last = [], None
        for _ in range(n):
            t = time.perf_counter()
            last = self.click(x, y)
            times.append(1000 * (time.perf_counter() - t))
        assert not last[2] and last[0]['screenshot'].shape == (210, 160, 3), 'the click ended the episode'
        return times

    def reset(self, seeds, dom=True, look=True):
        "Milliseconds of a reset, one for each seed; where `look`, with the screenshot of the first observation."
        self.use_dom(dom)
        self.env.set_record_screenshots(look)
        return [timed(lambda: self.env.reset(seed=seed)) for seed in seeds]

    def episodes(self, seeds, dom=True):
        "Milliseconds of whole episodes: reset, look up where the button is, click there."
        self.use_dom(dom)
        self.env.set_record_screenshots(True)
        return [timed(lambda: self._episode(seed)) for seed in seeds]

    def _episode(self, seed):
        self.env.reset(seed=seed)
        x, y, free = self.driver.execute_script(WHERE, 'subbtn')
        _, reward, done, _, info = self.click(x, y)
        assert not free or (done and info['raw_reward'] == 1), (seed, reward, done)

    def about(self):
        caps = self.driver.capabilities
        return dict(chromium=caps['browserVersion'], driver=caps['chrome']['chromedriverVersion'].split()[0], miniwob=miniwob.__version__)

    def close(self): self.env.close()


if __name__ == '__main__': serve(Selenium)
