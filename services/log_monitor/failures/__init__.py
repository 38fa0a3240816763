"""Why a run failed: signs of causes in lines (rules as data), what they amount to, and what should be done.

Pure: lines and facts in, a verdict out. The stream (`tracker`), the command line (`case`) and the evaluation use the same rooms.
"""
