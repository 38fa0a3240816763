poetry run python cleanrl/sac_continuous.py --env-id Hopper-v4 --total-timesteps 2000000 --track --seed 3
