set -e
export CFG=settings/prod.toml
uv run --frozen python src/fit.py --config "$CFG" --batch-size 96 --no-compile
