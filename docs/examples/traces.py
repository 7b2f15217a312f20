# %% [markdown]
# # Traces in a notebook
#
# Any editor that knows percent scripts (VS Code, Jupytext, Spyder) opens this as a notebook.
# `TRACES` names a folder with the traces of all ranks of one training.

# %%
import os

from transformer_core.trace.tables import read_files

tables = read_files([os.environ["TRACES"]])
print(tables)

# %% [markdown]
# ## Where the time of a step goes, by rank

# %%
parts = ["compute_ns", "exposed_communication_ns", "exposed_copies_ns", "idle_ns"]
shares = tables.devices.set_index("rank")[parts].div(tables.devices["window_ns"].values, axis=0)
print(shares.round(3))

# %% [markdown]
# ## Steps that took longest

# %%
if not tables.steps.empty:
    print(tables.steps.nlargest(5, "window_ns")[["rank", "step", "window_ns", "idle_ns"]])

# %% [markdown]
# ## Kernels of all ranks together, and products of matrices among them

# %%
kernels = tables.kernels.groupby("name")[["time_ns", "count"]].sum()
print(kernels.sort_values("time_ns", ascending=False).head(10))
print(kernels[kernels.index.str.contains("gemm")])

# %% [markdown]
# ## Layers, where the trace has ranges of modules

# %%
if not tables.layers.empty:
    print(tables.layers.nlargest(10, "own_ns")[["path", "calls", "own_ns"]])

# %% [markdown]
# ## Every single event: the longest pauses of a stream

# %%
work = tables.events[tables.events["class"].notna()].sort_values(["rank", "stream", "t0_ns"])
work["pause_ns"] = work["t0_ns"] - work.groupby(["rank", "stream"])["t1_ns"].shift()
print(work.nlargest(5, "pause_ns")[["rank", "stream", "name", "pause_ns"]])
