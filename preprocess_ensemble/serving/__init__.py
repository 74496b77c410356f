"""Start, watch and stop a real ``tritonserver``; nothing here touches images or weights."""
