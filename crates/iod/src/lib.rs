//! The data server: objects in a local directory behind the native data program.
