//! The client half of NFSv4.1 as plain data: sessions, compounds, callbacks and recovery, without sockets or clocks.

pub mod slots;
