export OUT=/out/mae_base
export XLA_PYTHON_CLIENT_PREALLOCATE=false
