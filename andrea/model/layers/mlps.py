"""The MLP sublayers.

Shapes: B sequences, T positions, C = d_model, M = mlp_dim.
"""

from torch import Tensor, nn

from andrea.model.settings import ModelSettings


class MLP(nn.Module):
    """`down(f(up(x)))`."""

    def __init__(self, cfg: ModelSettings, activation: nn.Module) -> None:
        super().__init__()
        self.up = nn.Linear(cfg.d_model, cfg.mlp_dim, bias=cfg.biases.mlp)
        self.activation = activation
        self.down = nn.Linear(cfg.mlp_dim, cfg.d_model, bias=cfg.biases.mlp)

    def forward(self, x_BTC: Tensor) -> Tensor:
        y_BTC: Tensor = self.down(self.activation(self.up(x_BTC)))
        return y_BTC


class GatedMLP(MLP):
    """`down(f(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, cfg: ModelSettings, activation: nn.Module) -> None:
        super().__init__(cfg, activation)
        self.gate = nn.Linear(cfg.d_model, cfg.mlp_dim, bias=cfg.biases.mlp)

    def forward(self, x_BTC: Tensor) -> Tensor:
        h_BTM = self.activation(self.gate(x_BTC)) * self.up(x_BTC)
        y_BTC: Tensor = self.down(h_BTM)
        return y_BTC


class SquaredReLU(nn.Module):
    """max(0, x)²."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()
