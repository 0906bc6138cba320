//! The client half of NFSv4.1 against the server half, in one process and without a network.

mod callbacks;
mod damage;
mod exactly_once;
mod sessions;
mod world;
