"""What ``clip_preprocess`` needs beside imaging: metrics and settings; nothing here decodes."""
