"""LSTM through time."""

from .cpu import lstm_cpu, lstm_grad_cpu, lstm_scores_cpu, lstm_seen_cpu
from .cuda import lstm_cuda, lstm_grad_cuda, lstm_scores_cuda, lstm_seen_cuda
from .family import lstm_grad_reference, lstm_reference, lstm_scores_reference, lstm_seen_reference
