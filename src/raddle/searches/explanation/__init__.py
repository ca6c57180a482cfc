"""Why a plan is as fast as it is, and what another split of one layer would change."""
