"""Weights as the compiled decoder reads them (decoder.h): panels of 64 outputs, padded with zeros.

Theory of operation
-------------------
A matrix is packed some rows at a time and its plain form dropped at once, so that packing needs memory for the model
and one more matrix. The order of its rows is a list of row numbers, -1 for a row of zeros.

A tied head is kept once. Where a share computes only some of its rows, the table begins with these: they are the head's
panels, and the embedding finds the other rows behind them (`table_and_head`).

With int8 weights a matrix is rounded output by output when it is packed; embedding and norms keep their type.

bfloat16 weights can be coded in 12 bits without loss (coding.cpp), from their panels. A matrix of which too many words
can't be stays as it is.

AVX2 walks through a panel's words once for every 16 outputs. Its panels lie in that order, a piece at a time, so that
it reads one line after the other.

Legend: N outputs, K inputs; P panels, W words, O outputs of a panel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.worker.kernels.cpu.decoder_library import CODED_BYTES, CodedView, MatrixView, NormView, loaded
from services.worker.model.linear import Linear

PANEL = 64
LANES = 16
_PIECE_ROWS = 8 * PANEL
"""Rows that are packed at a time."""
_MOST_PIECE_WORDS = 64
_LINE_WORDS = 16
_MOST_WHOLE = 0.125
"""Of the words of a coded matrix: half of what the others save."""
_BEYOND_ALL_WORDS = torch.iinfo(torch.int32).max


class PackedWeights:
    """Packs weights: as int8 if `quantized`, or coded, if they are bfloat16 and can be. `by_vector`: what is neither is
    in the order of AVX2. `kept` is all that the compiled code reads.
    """

    def __init__(self, *, quantized: bool, coded: bool, by_vector: bool) -> None:
        self.quantized = quantized
        self.coded = coded
        self.by_vector = by_vector
        self.kept: list[Tensor] = []

    def linear(self, linear: Linear, *, halves: bool = False) -> MatrixView:
        """Packs a layer and drops its plain weight. `halves`: outputs of both halves share a panel."""
        outputs = linear.weight.shape[0]
        order_N = _halves_together(outputs) if halves else _in_order(outputs)
        view = self._matrix(linear.weight, order_N, order_N.numel() if halves else outputs)
        if linear.bias is not None:
            view.bias = self.keep(_rows(linear.bias.data.float(), order_N))
        return view

    def table_and_head(self, embedding: nn.Parameter, head: Linear, rows: range) -> MatrixView:
        """Packs an embedding table, of which `head` has these rows, once for both, and drops its plain form."""
        view = self._matrix(embedding, _in_order(embedding.shape[0], first=rows.start), len(rows))
        head.weight.data = embedding.data  # of which it was a part
        return view

    def norm(self, weight: Tensor, bias: Tensor | None = None) -> NormView:
        """Keeps a norm's numbers."""
        return NormView(self.vector(weight), None if bias is None else self.vector(bias))

    def vector(self, weight: Tensor) -> int:
        """Keeps numbers as float32. Returns their address."""
        return self.keep(_rows(weight.data.float(), _in_order(weight.shape[0])))

    def keep(self, tensor: Tensor) -> int:
        """Keeps a tensor as it is. Returns its address."""
        self.kept.append(tensor)
        return tensor.data_ptr()

    def _matrix(self, parameter: nn.Parameter, order_N: Tensor, outputs: int) -> MatrixView:
        weight_NK = parameter.data
        parameter.data = weight_NK.new_empty(0)
        word_numbers = 4 // weight_NK.itemsize
        panels, words = order_N.numel() // PANEL, -(-weight_NK.shape[1] // word_numbers)
        view = MatrixView(outputs=outputs, inputs=weight_NK.shape[1])
        if not self.quantized:
            packed = torch.empty(panels, words, PANEL, dtype=torch.int32)
            for number, piece in enumerate(torch.split(order_N, _PIECE_ROWS)):
                packed_panels(_rows(weight_NK, piece), out=_piece(packed, number, piece))
            coded = coded_panels(packed) if self.coded and weight_NK.dtype == torch.bfloat16 else None
            if coded is None:
                view.packed = self.keep(put_by_vector(packed) if self.by_vector else packed)
            else:
                view.coded = CodedView(*(self.keep(part) for part in coded))
            return view
        scales_N = torch.empty(order_N.shape)
        whole = torch.empty(panels, words, PANEL // LANES, word_numbers, LANES, dtype=torch.int8)
        for number, piece in enumerate(torch.split(order_N, _PIECE_ROWS)):
            scales, rounded = quantized_panels(_rows(weight_NK, piece), word_numbers)
            scales_N[number * _PIECE_ROWS :][: piece.numel()] = scales
            _piece(whole, number, piece).copy_(rounded)
        view.quantized, view.scales = self.keep(whole), self.keep(scales_N)
        return view


def _piece(panels: Tensor, number: int, rows: Tensor) -> Tensor:
    """The panels of piece `number`, which has so many rows."""
    first = number * _PIECE_ROWS // PANEL
    return panels[first : first + rows.numel() // PANEL]


def packed_panels(weight_NK: Tensor, out: Tensor | None = None) -> Tensor:
    """Panels of words, int32 [P, W, O], of a weight of whole panels."""
    if weight_NK.dtype == torch.bfloat16:
        weight_NK = F.pad(weight_NK, (0, weight_NK.shape[1] % 2)).contiguous()
    words_NW = weight_NK.view(torch.int32)
    panels = words_NW.view(-1, PANEL, words_NW.shape[1]).transpose(1, 2)
    return panels.contiguous() if out is None else out.copy_(panels)


def put_by_vector(packed: Tensor) -> Tensor:
    """The same panels, int32 [P, W, O], with each piece's words of 16 outputs after those of the 16 before."""
    panels, words, _ = packed.shape
    for piece in torch.split(packed, _even_piece(words), dim=1):
        vectors = piece.view(panels, piece.shape[1], PANEL // LANES, LANES).transpose(1, 2)
        # A copy in every case: a view would do for a single word, which lies as it should.
        piece.copy_(vectors.clone(memory_format=torch.contiguous_format).view(piece.shape))
    return packed


def _even_piece(words: int) -> int:
    """How many words of a panel make a piece, as even_piece of products.h has it."""
    even = -(-words // -(-words // _MOST_PIECE_WORDS))
    return -(-even // _LINE_WORDS) * _LINE_WORDS


def coded_panels(packed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """Panels of bfloat16 words, int32 [P, W, O], coded: what Coded of decoder.h has, in its order. None if that is not
    worth it.
    """
    panels, words, _ = packed.shape
    coded = torch.empty(panels, words, CODED_BYTES, dtype=torch.uint8)
    upper = torch.empty(panels, 16, dtype=torch.uint8)
    first_whole: list[int] = []
    whole_at: list[Tensor] = []
    whole: list[Tensor] = []
    rows = 0
    found = torch.empty(words + 1, dtype=torch.int32)
    for panel in range(panels):
        addresses = (coded[panel].data_ptr(), upper[panel].data_ptr(), found.data_ptr())
        count = loaded().fastserve_code(packed[panel].data_ptr(), words, *addresses)
        first_whole.append(rows)
        rows += count + 1
        if rows - len(first_whole) > panels * words * _MOST_WHOLE:
            return None
        whole.append(packed[panel].index_select(0, found[:count]))
        found[count] = _BEYOND_ALL_WORDS
        whole_at.append(found[: count + 1].clone())
        whole.append(packed.new_zeros(1, PANEL))
    return coded, upper, torch.tensor(first_whole), torch.cat(whole_at), torch.cat(whole)


def quantized_panels(weight_NK: Tensor, word_numbers: int) -> tuple[Tensor, Tensor]:
    """Scales of the outputs, float32 [N], and int8 panels, [P, W, groups of 16 outputs, numbers of a word, 16]. An
    output's greatest weight becomes 127 or -127.
    """
    weight_NK = F.pad(weight_NK.float(), (0, -weight_NK.shape[1] % word_numbers))
    scales_N = weight_NK.abs().amax(dim=1).div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
    whole_NK = weight_NK.div_(scales_N[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    split = whole_NK.view(-1, PANEL // LANES, LANES, whole_NK.shape[1] // word_numbers, word_numbers)
    return scales_N, split.permute(0, 3, 1, 4, 2).contiguous()


def _rows(rows: Tensor, order_N: Tensor) -> Tensor:
    """The rows in this order."""
    found = rows.index_select(0, order_N.clamp(min=0))
    found[order_N < 0] = 0
    return found


def _in_order(count: int, *, first: int = 0) -> Tensor:
    """All of `count` rows from `first` on and around the end, padded to whole panels."""
    return F.pad((torch.arange(count) + first) % count, (0, -count % PANEL), value=-1)


def _halves_together(count: int) -> Tensor:
    """Rows of gate, then of up, as panels that hold 32 rows of gate and the same 32 of up."""
    half = count // 2
    gate = F.pad(torch.arange(half), (0, -half % (PANEL // 2)), value=-1)
    up = torch.where(gate < 0, gate, gate + half)
    return torch.stack((gate.view(-1, PANEL // 2), up.view(-1, PANEL // 2)), dim=1).flatten()
