"""What adapters read and write: payloads, settings and session files of other programs."""
