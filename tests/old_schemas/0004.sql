-- Added to 0003.
DROP INDEX objects_by_pack;
