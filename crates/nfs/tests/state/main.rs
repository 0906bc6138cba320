//! The state tables of the server half, walked through every short history and compared with plain specifications.

mod clients;
mod crowds;
mod delegations;
mod helpers;
mod layouts;
mod locks;
mod names;
mod opens;
mod partitions;
mod recovery;
mod sessions;
mod slots;
