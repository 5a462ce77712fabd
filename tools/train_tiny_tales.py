"""Train ``tiny-tales``, the small storyteller that ships with this project, and measure the result.

    python tools/train_tiny_tales.py train    --corpus fairytales.txt --out mini_vllm/assets/tiny-tales
    python tools/train_tiny_tales.py evaluate --corpus fairytales.txt --model mini_vllm/assets/tiny-tales
    python tools/train_tiny_tales.py sample   --model mini_vllm/assets/tiny-tales

    python tools/train_tiny_tales.py train --corpus fairytales.txt --out draft --teacher mini_vllm/assets/tiny-tales \\
        --layers 1 --width 192 --feed-forward 512 --heads 6 --kv-heads 3 --dropout 0

The last command trains a small model that guesses the tokens of ``tiny-tales``.

The corpus is plain text whose documents are separated by a line ``<|endoftext|>``. ``train`` trains the tokenizer and
the network and writes a folder that any reader of Hugging Face Llama folders can load: the modules below use the names
of that format, so exporting only changes the number type. Training runs on whatever device MLX has.

The script needs ``mlx``, ``numpy`` and ``tokenizers``, and nothing from this project: it is one file, so that it can be
used elsewhere.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
NUM_HELD_OUT_DOCUMENTS = 40  # evaluated once, when training is over
NUM_DEV_DOCUMENTS = 20  # evaluated during training, to notice overfitting and to choose a recipe

# The share of the steps spent at each window length, in tokens. Short windows come first, because they are cheap and
# most of what the model learns is local; the last steps train every position that the model will be asked for.
STAGES = ((0.70, 384), (0.20, 1024), (0.10, 2048))

PROMPTS = (
    "Once upon a time",
    "There was once a king who",
    "The old woman said to the fox,",
    "In the middle of the forest",
    '"Why do you weep?" asked the',
    "The youngest princess",
    "Far out in the ocean",
    "One winter's night",
    "The wolf knocked at the door",
    "Long ago, when the moon",
)


# ---- the corpus and its tokenizer


@dataclass
class Corpus:
    train: list[str]
    dev: list[str]
    held_out: list[str]


def read_corpus(path: Path) -> Corpus:
    """Split the documents of ``path``. Remove retellings of a held-out document from the training set."""
    documents = [document.strip() for document in path.read_text(encoding="utf-8").split(END)]
    documents = [document for document in documents if document]
    num_kept_apart = NUM_HELD_OUT_DOCUMENTS + NUM_DEV_DOCUMENTS
    if len(documents) <= num_kept_apart:
        raise ValueError(f"{path} holds {len(documents)} documents, but {num_kept_apart} are kept apart")
    random.Random(0).shuffle(documents)
    kept_apart, rest = documents[:num_kept_apart], documents[num_kept_apart:]
    seen = set().union(*(eight_word_runs(document) for document in kept_apart))
    train = [document for document in rest if not is_mostly_in(document, seen)]
    print(f"{len(documents)} documents: {len(train)} to train on, {NUM_DEV_DOCUMENTS} dev, {NUM_HELD_OUT_DOCUMENTS} "
          f"held out, {len(rest) - len(train)} dropped because they repeat a dev or held-out document")
    return Corpus(train, kept_apart[NUM_HELD_OUT_DOCUMENTS:], kept_apart[:NUM_HELD_OUT_DOCUMENTS])


def eight_word_runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z']+", text.lower())
    return set(zip(*(words[start:] for start in range(8))))


def is_mostly_in(document: str, seen: set[tuple[str, ...]]) -> bool:
    """Check whether more than a fifth of the document's runs of eight words are in ``seen``."""
    runs = eight_word_runs(document)
    return len(runs & seen) > 0.2 * len(runs)


def train_tokenizer(documents: list[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer: all 256 bytes are tokens, so it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def end_token(tokenizer: Tokenizer) -> int:
    end = tokenizer.token_to_id(END)
    if end is None:
        raise ValueError(f"the tokenizer has no token {END}")
    return end


def encode(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    """Return the token ids of each document between two end tokens. Generation starts from the first end token."""
    end = end_token(tokenizer)
    return [[end, *encoding.ids, end] for encoding in tokenizer.encode_batch(documents)]


# ---- the network: a Llama, with the names of its Hugging Face weights


@dataclass
class Shape:
    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 704
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0


class Attention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden_size, shape.num_attention_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, shape.num_key_value_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, shape.num_key_value_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * shape.head_dim, shape.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        batch, length, _ = x.shape
        head_dim = self.shape.head_dim
        rope = partial(mx.fast.rope, dims=head_dim, traditional=False, base=self.shape.rope_theta, scale=1.0, offset=0)
        q = rope(self.q_proj(x).reshape(batch, length, -1, head_dim).transpose(0, 2, 1, 3))
        k = rope(self.k_proj(x).reshape(batch, length, -1, head_dim).transpose(0, 2, 1, 3))
        v = self.v_proj(x).reshape(batch, length, -1, head_dim).transpose(0, 2, 1, 3)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=head_dim**-0.5, mask="causal")
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def __call__(self, x: mx.array) -> mx.array:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x)))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = [Layer(shape, dropout) for _ in range(shape.num_hidden_layers)]
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        self.dropout = nn.Dropout(dropout)


class TinyTales(nn.Module):
    def __init__(self, shape: Shape, dropout: float = 0.0):
        super().__init__()
        self.model = Decoder(shape, dropout)

    def __call__(self, token_ids: mx.array) -> mx.array:
        """Return the logits for ``token_ids`` [batch, length]."""
        x = self.model.dropout(self.model.embed_tokens(token_ids))
        for layer in self.model.layers:
            x = layer(x)
        logits: mx.array = self.model.embed_tokens.as_linear(self.model.norm(x))  # tied: the embedding is the output
        return logits


def weights_of(model: TinyTales) -> dict[str, mx.array]:
    return cast(dict[str, mx.array], tree_flatten(model.parameters(), destination={}))


def initialise(model: TinyTales) -> None:
    """Initialise the weights as GPT-2 does: N(0, 0.02), and smaller for those that add to the residual stream.

    These are divided by the square root of the number of such additions.
    """
    residual_scale = (2 * len(model.model.layers)) ** -0.5
    weights = {}
    for name, weight in weights_of(model).items():
        if weight.ndim == 2:
            scale = 0.02 * (residual_scale if "o_proj" in name or "down_proj" in name else 1.0)
            weight = mx.random.normal(weight.shape, scale=scale)
        weights[name] = weight
    model.update(tree_unflatten(list(weights.items())))


# ---- measuring


@dataclass
class Score:
    """How surprised the model is by every token of the documents, including end tokens but not start tokens."""

    nats: float
    num_tokens: int
    num_characters: int

    @property
    def bits_per_character(self) -> float:
        return self.nats / math.log(2) / self.num_characters

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats / self.num_tokens)


def evaluate(model: TinyTales, tokenizer: Tokenizer, documents: list[str], context: int, stride: int) -> Score:
    """Score each of ``documents`` separately, with a window of ``context`` tokens that slides by ``stride``.

    Only the last ``stride`` targets of a window count. So each target counts once and, where its document is long
    enough, is predicted from at least ``context - stride`` tokens.
    """
    if not 1 <= stride <= context:
        raise ValueError(f"stride is {stride}, but must be between 1 and the context of {context}")
    model.eval()
    windows = []
    for ids in encode(tokenizer, documents):
        num_targets = len(ids) - 1
        for first in range(0, num_targets, stride):
            last = min(first + stride, num_targets)
            begin = max(0, last - context)
            windows.append((ids[begin : last + 1], last - first))
    nats = 0.0
    for start in range(0, len(windows), 16):
        batch = windows[start : start + 16]
        longest = max(len(ids) for ids, _ in batch)
        tokens = np.zeros((len(batch), longest), dtype=np.int32)
        counts = np.zeros((len(batch), longest - 1), dtype=np.float32)
        for row, (ids, num_scored) in enumerate(batch):
            tokens[row, : len(ids)] = ids
            counts[row, len(ids) - 1 - num_scored : len(ids) - 1] = 1
        logits = model(mx.array(tokens[:, :-1]))
        losses = nn.losses.cross_entropy(logits.astype(mx.float32), mx.array(tokens[:, 1:]))
        nats += cast(float, (losses * mx.array(counts)).sum().item())
    return Score(nats, sum(num_scored for _, num_scored in windows), sum(map(len, documents)))


def generate(model: TinyTales, tokenizer: Tokenizer, prompt: str, max_tokens: int, temperature: float, seed: int
             ) -> str:
    """Return the prompt and its continuation, up to ``max_tokens`` tokens or the end of the story."""
    model.eval()
    key, ids = mx.random.key(seed), list(tokenizer.encode(prompt).ids)
    for _ in range(max_tokens):
        key, subkey = mx.random.split(key)
        logits = model(mx.array([ids]))[:, -1].astype(mx.float32)
        token_id = cast(int, mx.random.categorical(logits / temperature, key=subkey).item())
        if token_id == end_token(tokenizer):
            break
        ids.append(token_id)
    return tokenizer.decode(ids)


# ---- training


def batches(tokens: mx.array, num_steps: int, batch_tokens: int, seed: int) -> Iterator[mx.array]:
    """Yield one [windows, length + 1] array per step, with windows cut at random. STAGES sets the lengths."""
    rng = np.random.default_rng(seed)
    lengths = [length for share, length in STAGES for _ in range(round(share * num_steps))]
    lengths += [STAGES[-1][1]] * (num_steps - len(lengths))
    for length in lengths[:num_steps]:
        starts = rng.integers(0, tokens.size - length, size=max(1, batch_tokens // length))
        yield tokens[mx.array(starts[:, None] + np.arange(length + 1))]


def make_optimizer(num_steps: int, learning_rate: float, weight_decay: float) -> optim.AdamW:
    """Make AdamW with a linear warm-up of at most 200 steps and a cosine decay to a fiftieth of the learning rate."""
    num_warmup_steps = max(1, min(200, num_steps // 10))
    schedule = optim.join_schedules(
        [optim.linear_schedule(0.0, learning_rate, num_warmup_steps),
         optim.cosine_decay(learning_rate, num_steps - num_warmup_steps, end=0.02 * learning_rate)], [num_warmup_steps])
    return optim.AdamW(schedule, betas=[0.9, 0.95], weight_decay=weight_decay, bias_correction=True)


def train(corpus: Corpus, tokenizer: Tokenizer, shape: Shape, args: argparse.Namespace, teacher: TinyTales | None
          ) -> TinyTales:
    """Train from scratch. Return a model with the moving average of the weights, in float32.

    With a ``teacher``, the model learns the teacher's probabilities of all next tokens instead of the next token. That
    is what a draft model needs: to agree with the teacher, not to be right.

    The function is long because the compiled step closes over the model, the optimizer and the average, which it
    changes.
    """
    mx.random.seed(args.seed)
    num_steps: int = args.steps
    model = TinyTales(shape, args.dropout)
    initialise(model)
    tokens = mx.array(np.concatenate(encode(tokenizer, corpus.train)).astype(np.int32))
    num_parameters = sum(weight.size for weight in weights_of(model).values())
    print(f"{num_parameters:,} parameters, {tokens.size:,} training tokens, "
          f"{num_steps * args.batch_tokens / tokens.size:.1f} passes over them, on {mx.default_device()}", flush=True)

    optimizer = make_optimizer(num_steps, args.learning_rate, args.weight_decay)
    optimizer.init(model.trainable_parameters())
    average = {"weights": tree_map(mx.array, model.trainable_parameters())}
    compute_type = mx.bfloat16 if mx.default_device() == mx.Device(mx.gpu) else mx.float32

    def loss_of(weights: dict[str, Any], windows: mx.array) -> mx.array:
        # The optimizer keeps float32 weights; the pass through the network uses rounded copies.
        model.update(tree_map(lambda weight: weight.astype(compute_type), weights))
        logits = model(windows[:, :-1])
        if teacher is None:
            return nn.losses.cross_entropy(logits.astype(mx.float32), windows[:, 1:], reduction="mean")
        wanted = mx.stop_gradient(mx.softmax(teacher(windows[:, :-1]).astype(mx.float32), axis=-1))
        scores = logits.astype(mx.float32)
        return -(wanted * (scores - mx.logsumexp(scores, axis=-1, keepdims=True))).sum(axis=-1).mean()

    state = [model.state, optimizer.state, average, mx.random.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(windows: mx.array) -> mx.array:
        weights = model.trainable_parameters()
        loss, gradients = mx.value_and_grad(loss_of)(weights, windows)
        gradients, _ = optim.clip_grad_norm(gradients, max_norm=1.0)
        weights = optimizer.apply_gradients(gradients, weights)
        model.update(weights)
        average["weights"] = tree_map(lambda old, new: args.ema_decay * old + (1 - args.ema_decay) * new,
                                      average["weights"], weights)
        return loss

    began_s = time.perf_counter()
    losses: list[mx.array] = []
    averaged = TinyTales(shape)
    for index, windows in enumerate(batches(tokens, num_steps, args.batch_tokens, args.seed), start=1):
        model.train()
        losses.append(step(windows))
        mx.async_eval(losses[-1], state)
        if index % 50 == 0:
            mx.eval(state)  # at most 50 steps are ever in flight
        if index % max(1, num_steps // 8) == 0 or index == num_steps:
            train_loss = mx.stack(losses).mean().item()
            losses.clear()
            averaged.update(average["weights"])
            scores = [evaluate(m, tokenizer, corpus.dev, context=1024, stride=512) for m in (model, averaged)]
            print(f"step {index}/{num_steps}, {time.perf_counter() - began_s:.0f} s, windows of {windows.shape[1] - 1}:"
                  f" training loss {train_loss:.4f} nats per token; dev {scores[0].bits_per_character:.4f} bits per "
                  f"character, averaged weights {scores[1].bits_per_character:.4f}", flush=True)
    return averaged


# ---- the folder


def export(model: TinyTales, tokenizer: Tokenizer, folder: Path, shape: Shape) -> None:
    """Write ``folder`` in the layout of a Hugging Face Llama, with float16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    end = end_token(tokenizer)
    weights = {name: weight.astype(mx.float16) for name, weight in weights_of(model).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", **asdict(shape), hidden_act="silu",
        attention_bias=False, attention_dropout=0.0, mlp_bias=False, initializer_range=0.02, pretraining_tp=1,
        rope_scaling=None, tie_word_embeddings=True, bos_token_id=end, eos_token_id=end, torch_dtype="float16",
        use_cache=True)
    tokenizer_config = dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=END, eos_token=END, add_prefix_space=False,
        clean_up_tokenization_spaces=False, model_max_length=shape.max_position_embeddings)
    generation_config = dict(bos_token_id=end, eos_token_id=end, do_sample=True, temperature=0.8)
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config),
                          ("generation_config.json", generation_config)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def load(folder: Path) -> tuple[TinyTales, Tokenizer]:
    """Load an exported model. It computes in float32 with the rounded weights."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = TinyTales(Shape(**{name: config[name] for name in asdict(Shape())}))
    weights = cast(dict[str, mx.array], mx.load(str(folder / "model.safetensors")))
    model.load_weights([(name, weight.astype(mx.float32)) for name, weight in weights.items()])
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    command = commands.add_parser("train", help="tokenizer, training and export")
    command.add_argument("--corpus", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--steps", type=int, default=16000)
    command.add_argument("--batch-tokens", type=int, default=64 * 384, help="tokens in one step")
    command.add_argument("--learning-rate", type=float, default=1e-3,
                         help="the highest learning rate, from which the cosine decay starts")
    command.add_argument("--weight-decay", type=float, default=0.1)
    command.add_argument("--dropout", type=float, default=0.3)
    command.add_argument("--ema-decay", type=float, default=0.999, help="decay of the moving average of the weights")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--layers", type=int, default=Shape.num_hidden_layers)
    command.add_argument("--width", type=int, default=Shape.hidden_size)
    command.add_argument("--feed-forward", type=int, default=Shape.intermediate_size)
    command.add_argument("--heads", type=int, default=Shape.num_attention_heads)
    command.add_argument("--kv-heads", type=int, default=Shape.num_key_value_heads)
    command.add_argument("--teacher", type=Path, help="a model to imitate, whose tokenizer is used")

    command = commands.add_parser("evaluate", help="bits per character on the held-out documents")
    command.add_argument("--corpus", type=Path, required=True)
    command.add_argument("--model", type=Path, required=True)
    command.add_argument("--context", type=int, default=1024, help="window length in tokens")
    command.add_argument("--stride", type=int, default=512, help="how far the window slides, in tokens")
    command.add_argument("--documents", type=int, default=NUM_HELD_OUT_DOCUMENTS, metavar="N",
                         help="evaluate only the first N documents")

    command = commands.add_parser("sample", help="one story for each fixed prompt, with seeds 0, 1, 2 ...")
    command.add_argument("--model", type=Path, required=True)
    command.add_argument("--temperature", type=float, default=0.8)
    command.add_argument("--max-tokens", type=int, default=120)
    return parser


def main() -> None:
    args = make_parser().parse_args()
    if args.command == "train":
        corpus = read_corpus(args.corpus)
        shape = Shape(hidden_size=args.width, num_hidden_layers=args.layers, num_attention_heads=args.heads,
                      num_key_value_heads=args.kv_heads, intermediate_size=args.feed_forward)
        teacher, tokenizer = load(args.teacher) if args.teacher else (
            None, train_tokenizer(corpus.train, shape.vocab_size))
        if teacher is not None and mx.default_device() == mx.Device(mx.gpu):
            teacher.update(tree_map(lambda weight: weight.astype(mx.bfloat16), teacher.parameters()))
        began_s = time.perf_counter()
        model = train(corpus, tokenizer, shape, args, teacher)
        export(model, tokenizer, args.out, shape)
        print(f"trained for {time.perf_counter() - began_s:.0f} s, wrote {args.out}")
    elif args.command == "evaluate":
        corpus = read_corpus(args.corpus)
        model, tokenizer = load(args.model)
        score = evaluate(model, tokenizer, corpus.held_out[: args.documents], args.context, args.stride)
        print(f"{min(args.documents, NUM_HELD_OUT_DOCUMENTS)} held-out documents, context {args.context}, stride "
              f"{args.stride}: {score.bits_per_character:.4f} bits per character, perplexity "
              f"{score.perplexity:.2f} per token ({score.nats:.1f} nats, {score.num_tokens:,} tokens, "
              f"{score.num_characters:,} characters)")
    else:
        model, tokenizer = load(args.model)
        for seed, prompt in enumerate(PROMPTS):
            print(f"--- seed {seed}, prompt: {prompt}")
            print(generate(model, tokenizer, prompt, args.max_tokens, args.temperature, seed))


if __name__ == "__main__":
    main()
