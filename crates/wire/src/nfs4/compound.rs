//! COMPOUND and CB_COMPOUND, read one operation at a time and written without knowing their number in advance.
