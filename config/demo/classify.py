"""Asks a running node which digit a picture shows: `python classify.py [HOST:PORT]`. Needs tritonclient[grpc]."""

import sys
from pathlib import Path

import numpy as np
from tritonclient import grpc

target = sys.argv[1] if len(sys.argv) > 1 else "localhost:8001"
image = np.loadtxt(Path(__file__).with_name("digit.txt"), dtype=np.float32).reshape(1, 8, 8)

client = grpc.InferenceServerClient(target)
pixels = grpc.InferInput("image", image.shape, "FP32")
pixels.set_data_from_numpy(image)
reply = client.infer("digits", [pixels])

digit = int(reply.as_numpy("digit")[0])
print(f"It is a {digit}, with probability {reply.as_numpy('probabilities')[0, digit]:.2f}.")
