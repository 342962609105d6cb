"""Endpoint text: a server on the network tells what comes next; the state is the transcript, as bytes."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import random
import threading
from collections.abc import Iterator

import torch
from contract.local_text import Policy, spelt  # noqa: F401
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.text import decode, encode
from dreamsim.core.types import Learned, Obs, Segment
from dreamsim.envs.toy import Echo
from dreamsim.imagination.imagine import Believer

make_env, actor = Echo, Believer
TRANSCRIPT = 160  # bytes that are kept


class Model(nn.Module):
    """State: ``{"transcript": (B, L)}`` uint8, one line a text; the last line is the newest observation."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space, port: int = 0) -> None:
        super().__init__()
        self.length, self.port = observation_space["text"].shape[0], port
        self.judge = nn.Linear(2, 2)

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return _held(_lines(obs["text"]))

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        texts = zip(decode(state["transcript"]), _lines(spelt(action)), _lines(obs["text"]), strict=True)
        return _held(["\n".join(lines) for lines in texts])

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        asked = ["\n".join(lines) for lines in zip(decode(state["transcript"]), _lines(spelt(action)), strict=True)]
        seeds = torch.randint(2**31, (len(asked),)).tolist()
        text = encode(self._ask({"transcripts": asked, "seeds": seeds}), self.length)
        told = self._judge(self.view(state)["text"], text)
        return self.update(state, action, {"text": text}), told[:, 0], torch.sigmoid(told[:, 1] + 1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        return {"text": encode([text.rpartition("\n")[2] for text in decode(state["transcript"])], self.length)}

    def loss(self, batch: Segment) -> Learned:
        before, after = (batch.obs["text"][:, part].flatten(0, 1) for part in (slice(-1), slice(1, None)))
        told = self._judge(before, after).unflatten(0, batch.mask.shape)
        error = (told[..., 0] - batch.reward).square()
        return Learned({"reward": (error * batch.mask).sum() / batch.mask.sum()}, None)

    def _judge(self, before: Tensor, after: Tensor) -> Tensor:
        same = (before == after).all(1)
        return self.judge(torch.stack([same, (after < 255).float().mean(1)], 1))

    def _ask(self, question: dict) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", "/next", json.dumps(question))
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"the endpoint answered {answer.status} {answer.reason}")
        return json.loads(answer.read())


def _lines(texts: Tensor) -> list[str]:
    return ["".join(c for c in text if " " <= c <= "~") for text in decode(texts)]


def _held(transcripts: list[str]) -> dict[str, Tensor]:
    return {"transcript": encode([text[-TRANSCRIPT:] for text in transcripts], TRANSCRIPT)}


class Answers(http.server.BaseHTTPRequestHandler):
    """Repeats the last line of each transcript, or a part of it by the seed."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = [text.rpartition("\n")[2] for text in asked["transcripts"]]
        said = [w[: random.Random(seed).randint(0, 4)] for w, seed in zip(words, asked["seeds"], strict=True)]
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Answer on a free port of this machine, and say which."""
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
