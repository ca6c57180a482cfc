// The page of `raddle serve`.
