//! The NFSv4.1 client as plain data: sessions, compounds, callbacks and recovery, without sockets or clocks.

pub mod callback;
pub mod compound;
pub mod fattr;
pub mod recovery;
pub mod session;
pub mod slots;
