//! Tests of the NFSv4.1 client code against the server code, in one process and without a network.

mod callbacks;
mod damage;
mod exactly_once;
mod helpers;
mod sessions;
