//! The client core: sessions, open files, layout drivers, pieces in parallel under a bounded window.
