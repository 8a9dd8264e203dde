"""The old gym, by gymnasium: reset returns an observation, step four things."""
# It takes whatever its untyped original takes.
# ruff: noqa: ANN001, ANN003, ANN201, ANN202, ARG002

from __future__ import annotations

import sys

import gymnasium


class _Old(gymnasium.Wrapper):
    def reset(self, **kwargs):
        return self.env.reset(seed=self.__dict__.pop("wanted", None))[0]

    def step(self, action):
        observation, reward, ended, cut, info = self.env.step(action)
        return observation, reward, ended or cut, info

    def seed(self, seed=None):
        self.wanted = seed
        return [seed]

    @property
    def _max_episode_steps(self):
        return self.spec.max_episode_steps


def make(name, **kwargs):
    """Make one of the two small environments that need nothing else, whatever was asked for."""
    known = "CartPole-v1" if "CartPole" in name else "Pendulum-v1"
    return _Old(gymnasium.make(known, **kwargs))


gym = type(sys)("gym")
gym.make, gym.spaces, gym.Wrapper, gym.Env = make, gymnasium.spaces, _Old, gymnasium.Env
sys.modules["gym"], sys.modules["gym.spaces"] = gym, gymnasium.spaces
