"""beartype as jaxtyping's checker; a whole number is welcome where a float is asked for."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
