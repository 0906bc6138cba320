//! Integration tests of an iod on real sockets and disks, with a small blocking client.

mod access;
mod cluster;
mod concurrency;
mod damage;
mod faults;
mod index;
mod model;
mod objects;
mod overload;
mod peer;
mod pulls;
mod replaced;
mod short_circuit;
mod start_stop;
mod volumes;
mod write_reports;
