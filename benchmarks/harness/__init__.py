"""The parts that all experiments share: rounds, checkpoints, results, the environment."""
