"""What is compiled where it can be, beside Python twins that give the same answer."""
