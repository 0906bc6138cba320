//! The server against scripted clients, through the real encoding on both sides.

mod mount;
mod random;
