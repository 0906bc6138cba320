//! Listening sockets of an iod's NFS service for kernel clients, and the addresses that the clients receive.

use crate::failure::Failure;
use net::Listener;
use std::net::SocketAddr;

/// Difference between the port of an iod's NFS service and the iod's main port. It is large, so that iods that listen
/// on neighbouring ports of one machine do not collide.
const OFFSET: u16 = 1000;

/// The addresses at which an iod serves NFS.
pub enum Nfs {
    /// Serve NFS at exactly these addresses.
    At(Vec<SocketAddr>),
    /// Serve NFS at the same IP addresses as these addresses. The port is [`OFFSET`] above the given port, or a free
    /// port if the iod cannot bind that port.
    Near(Vec<SocketAddr>),
}

impl Nfs {
    /// Binds the listening sockets of the NFS service. Returns the sockets, and the addresses that NFS clients receive.
    pub async fn bind(self, advertised: Vec<SocketAddr>) -> Result<(Vec<Listener>, Vec<String>), Failure> {
        let mut listeners = Vec::new();
        match self {
            Nfs::At(addresses) => {
                for address in addresses {
                    listeners.push(Listener::bind(&address.into()).await.map_err(Failure::from_message)?);
                }
            }
            Nfs::Near(addresses) => {
                for address in addresses {
                    let port = if address.port() == 0 { 0 } else { address.port().checked_add(OFFSET).unwrap_or(0) };
                    let wanted = Listener::bind(&SocketAddr::new(address.ip(), port).into()).await;
                    listeners.push(match wanted {
                        Ok(listener) => listener,
                        Err(_) => {
                            let free = SocketAddr::new(address.ip(), 0);
                            Listener::bind(&free.into()).await.map_err(Failure::from_message)?
                        }
                    });
                }
            }
        }
        let bound = listeners.iter().map(|listener| listener.address().to_string());
        let told =
            if advertised.is_empty() { bound.collect() } else { advertised.iter().map(ToString::to_string).collect() };
        Ok((listeners, told))
    }
}
