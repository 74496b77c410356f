"""Systems other than ours that the experiments compare with: how each is started and asked."""
