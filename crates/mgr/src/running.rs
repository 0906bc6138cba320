//! Start and stop of a mgr with its background jobs.

use crate::backchannel::Backchannel;
use crate::background;
use crate::background::scrub::Scrubs;
use crate::clients::Clients;
use crate::clock::now;
use crate::cluster_file::ClusterFile;
use crate::config::{Checked, Config, RIGHT_SECS};
use crate::counters::Counters;
use crate::error::{Error, random};
use crate::exports::{Exports, Rule};
use crate::fs::Files;
use crate::gateway::Gateway;
use crate::gathered_writes::GatheredWrites;
use crate::intents::Intents;
use crate::iods::{self, Iods, Supervisors};
use crate::kinds::{Kinds, Lifetimes};
use crate::local_socket_hint::{self, LocalSocket};
use crate::rights::Rights;
use crate::volume::{Volume, swap_layout};
use crate::{status, store};
use meta::{Embedded, Namespace};
use net::clock::unix_now;
use net::rpc::{InProcessConnector, Limits, serve};
use net::{Address, Listener};
use nfs::server::{self, Server};
use nfs::state;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use types::{FileId, Fsid, Status};
use wire::admin::{CheckArgs, CheckReply};
use wire::nfs4::EXCHGID4_FLAG_USE_PNFS_MDS;

/// How long a stop of the mgr waits for requests whose connections have ended, and for the flush of gathered writes.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The metadata server. Its functions start a mgr in this process.
#[derive(Debug)]
pub struct Mgr;

/// A running mgr. Dropping it stops the mgr at once, without a flush of gathered writes.
pub struct Running {
    network: net::rpc::Server,
    /// Number of configured listening addresses in the address list. The address of the local Unix socket follows them.
    listening: usize,
    gateway: Arc<Gateway>,
    namespace: Arc<Namespace<Embedded>>,
    _supervisors: Supervisors,
    background: JoinSet<()>,
}

async fn bind(addresses: &[Address]) -> Result<Vec<Listener>, Error> {
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(Listener::bind(address).await?);
    }
    Ok(listeners)
}

impl Mgr {
    /// Starts a mgr in tasks of the current tokio runtime. Waits until the mgr has tried each iod once, but not longer
    /// than a few seconds for slow iods. The mgr then retries unreachable iods forever.
    pub async fn start(config: Config) -> Result<Running, Error> {
        let checked = config.check()?;
        // Bind the listening addresses first: if an address is in use, nothing has to be undone.
        let listeners = bind(&checked.listen).await?;
        Self::start_at(config, listeners).await
    }

    /// Starts a mgr like [`Self::start`], on listeners of the caller instead of the configured addresses.
    pub async fn start_at(config: Config, listeners: Vec<Listener>) -> Result<Running, Error> {
        let cluster = ClusterFile::load(&config.cluster_file)?;
        let namespace = store::open(&config.dir, &cluster, &config.cluster_file).await?;
        // Only the process that has the store open uses the directory, so no other process listens at the socket path.
        let local_socket = local_socket_hint::listen(&config.dir, u64::from_be_bytes(random()?)).await;
        let boot = store::boot().unwrap_or(u64::from_be_bytes(random()?));
        Self::start_near(&config, cluster, (namespace, boot), Arc::default(), listeners, local_socket).await
    }

    /// Starts a mgr like [`Self::start`], on the metadata store that the caller has opened. Does not use the paths in
    /// `config`. `boot` must change whenever the machine may have lost power. This function does not block, and does no
    /// I/O except through [`net`] and the store.
    pub async fn start_on(
        config: &Config,
        cluster: ClusterFile,
        namespace: Arc<Namespace<Embedded>>,
        boot: u64,
    ) -> Result<Running, Error> {
        let listeners = bind(&config.check()?.listen).await?;
        Self::start_near(config, cluster, (namespace, boot), Arc::default(), listeners, Default::default()).await
    }

    /// Starts a mgr like [`Self::start`], with the stored kinds of the caller.
    #[cfg(test)]
    pub(crate) async fn start_with(config: &Config, kinds: Kinds) -> Result<Running, Error> {
        let listeners = bind(&config.check()?.listen).await?;
        let cluster = ClusterFile::load(&config.cluster_file)?;
        let namespace = store::open(&config.dir, &cluster, &config.cluster_file).await?;
        Self::start_near(config, cluster, (namespace, 1), Arc::new(kinds), listeners, Default::default()).await
    }

    async fn start_near(
        config: &Config,
        cluster: ClusterFile,
        (namespace, boot): (Arc<Namespace<Embedded>>, u64),
        kinds: Arc<Kinds>,
        mut listeners: Vec<Listener>,
        (local_socket, nearby): (LocalSocket, Option<Listener>),
    ) -> Result<Running, Error> {
        let checked = config.check()?;
        let nonce = u64::from_be_bytes(random()?);
        let network = net::Counters::default();
        let rights = earlier_rights(&namespace).map_err(Error::Metadata)?;
        let (epoch, iods, supervisors) =
            keep_iods(config, &checked, cluster, (&namespace, &kinds), nonce, &network).await?;
        let exports = start_exports(checked.exports, &namespace, &iods, epoch).await.map_err(Error::Metadata)?;
        let volume = Arc::new(Volume {
            namespace: namespace.clone(),
            boot,
            kept_below: store::kept_below(&namespace).map_err(Error::Metadata)?,
            iods,
            kinds,
            clients: Clients::load(namespace.clone()).map_err(Error::Metadata)?,
            grants: Default::default(),
            intents: Intents::load(namespace.clone()).map_err(Error::Metadata)?,
            scrubs: Scrubs::load(namespace.clone()).map_err(Error::Metadata)?,
            locks: Default::default(),
            space: Default::default(),
            moving: Default::default(),
            moves: Default::default(),
            inline_max: checked.inline_max,
            gathered: GatheredWrites::new(checked.gather_delay, checked.gather_bytes),
            counters: Default::default(),
            policy: checked.policy,
            lease_secs: checked.lease_secs,
            lifetimes: Lifetimes { capability: checked.capability_secs, data_handle: checked.data_handle_secs },
            rights,
            queue: Default::default(),
            begun: tokio::time::Instant::now(),
            exports,
            devices: Default::default(),
            native: Default::default(),
            damaged: Default::default(),
            doomed: Notify::new(),
            orphans_left: AtomicBool::new(true),
        });
        let config = server_config(volume.iods.cluster().fsid, epoch, checked.lease_secs);
        let backchannel = Backchannel::default();
        let server = Server::start(Files(volume.clone()), backchannel.clone(), config, now()).await;
        let server = Arc::new(server.map_err(Error::Metadata)?);
        let background = background::start(&network, &volume, &server);
        drop(volume);
        let gateway = Arc::new(Gateway {
            server,
            backchannel,
            network: network.clone(),
            started: Instant::now(),
            checks: Default::default(),
            dumps: Default::default(),
            mismatches: Default::default(),
            local_socket,
            random: Default::default(),
        });
        let listening = listeners.len();
        listeners.extend(nearby);
        let network = serve(listeners, gateway.clone(), Limits::default(), network);
        for address in network.addresses() {
            tracing::info!(%address, epoch, "mgr is up");
        }
        Ok(Running { network, listening, gateway, namespace, _supervisors: supervisors, background })
    }
}

fn server_config(fsid: Fsid, epoch: u32, lease_secs: u32) -> server::Config {
    let lease = Duration::from_secs(lease_secs.into());
    server::Config {
        state: state::Config::new(epoch, EXCHGID4_FLAG_USE_PNFS_MDS, lease),
        major_id: format!("weir/{fsid}").into(),
        implementation: concat!("weir ", env!("CARGO_PKG_VERSION")).into(),
    }
}

/// Returns the table of clients' rights to objects at the start of the mgr. The mgr does not know the lifetime of the
/// rights that it granted before this start, so the table assumes the longest lifetime that a configuration allows.
fn earlier_rights(namespace: &Namespace<Embedded>) -> Result<Rights, Status> {
    Ok(Rights::new(namespace.next_id()?, unix_now() + u64::from(*RIGHT_SECS.end())))
}

/// Creates the table of exports. If the conditions of access to the exports have changed since the last start of the
/// mgr, revokes the rights that clients got before this start.
async fn start_exports(
    rules: Vec<Rule>,
    namespace: &Arc<Namespace<Embedded>>,
    iods: &Iods,
    epoch: u32,
) -> Result<Exports, Status> {
    let exports = Exports::start(rules, namespace.clone(), epoch == 1).await?;
    let key = &iods.cluster().key;
    if exports.have_changed(key)? {
        if epoch > 1 {
            iods.end_earlier_rights().await?;
        }
        exports.record_terms(key).await?;
    }
    Ok(exports)
}

/// Begins the epoch of this start of the mgr and connects the iods. Fails if another store, or a later state of this
/// store, has used one of the iods.
async fn keep_iods(
    config: &Config,
    checked: &Checked,
    cluster: ClusterFile,
    (namespace, kinds): (&Arc<Namespace<Embedded>>, &Arc<Kinds>),
    nonce: u64,
    network: &net::Counters,
) -> Result<(u32, Arc<Iods>, Supervisors), Error> {
    let mut epoch = store::next_epoch(namespace).await?;
    let identity = store::identity(namespace).map_err(Error::Metadata)?;
    let patience = Duration::from_secs(checked.iod_wait_secs.into());
    let load = |epoch| {
        let (cluster, addresses) = (cluster.clone(), checked.iods.clone());
        let store = (namespace.clone(), kinds.clone());
        let iods = Iods::load(store, cluster, addresses, (identity, epoch), nonce, patience, network.clone());
        iods.map_err(Error::Metadata)
    };
    if config.recover_old_store {
        load(epoch)?.recover_old_store(epoch).await?;
        epoch = store::next_epoch(namespace).await?;
    }
    let iods = Arc::new(load(epoch)?);
    let supervisors = iods.supervise().await;
    match iods.refused() {
        Some(iods::Refused { address, refusal }) => Err(Error::IodRefused { address, refusal }),
        None => Ok((epoch, iods, supervisors)),
    }
}

impl Running {
    /// Returns the addresses on which the mgr listens, with the actual ports, in the order of the configuration.
    pub fn addresses(&self) -> &[Address] {
        &self.network.addresses()[..self.listening]
    }

    /// Returns the path of the Unix socket for clients on this host; `None` if the mgr could not create it.
    pub fn nearby(&self) -> Option<&Address> {
        self.network.addresses().get(self.listening)
    }

    /// Returns the entry point through which clients in this process connect; `None` if the mgr has no listening
    /// address.
    pub fn door(&self) -> Option<InProcessConnector> {
        self.network.connector()
    }

    /// Returns the counters of the mgr, apart from those of NFS operations.
    pub fn counters(&self) -> Counters {
        self.gateway.server.fs().0.counters.snapshot()
    }

    /// Returns the file system that the mgr serves, for use in this process. The caller must drop the file system
    /// before it calls [`Self::stop`].
    pub fn files(&self) -> Files {
        self.gateway.server.fs().clone()
    }

    /// Returns the status that `weir status` shows.
    pub fn status(&self) -> wire::admin::Status {
        status::of(&self.gateway)
    }

    /// Completes only when the mgr cannot continue, because its store failed or is an older copy. The mgr then replies
    /// to all requests with errors, so the caller must end the process at once. After the next start, the file system
    /// has every change that was durable.
    pub async fn failed(&self) -> Error {
        let volume = &self.gateway.server.fs().0;
        tokio::select! {
            broken = self.namespace.failed() => Error::StoreFailed(broken),
            iods::Refused { address, refusal } = volume.iods.until_refused() => Error::IodRefused { address, refusal },
        }
    }

    /// Runs a check like `weir fsck`, with repairs if `repair` is set. Returns the last page of the check, with the
    /// findings of all pages.
    pub fn check(&self, repair: bool) -> impl Future<Output = CheckReply> + Send + use<> {
        let gateway = self.gateway.clone();
        async move {
            let mut args = CheckArgs { run: 0, page: 0, repair };
            let mut findings = Vec::new();
            loop {
                let mut page = gateway.checks.call(&gateway.server, args).await;
                findings.append(&mut page.findings);
                if page.end || page.refused.is_some() {
                    return CheckReply { findings, ..page };
                }
                args = CheckArgs { run: page.run, page: page.page + 1, repair };
            }
        }
    }

    /// Moves the bytes of a file to new objects on the iods with these numbers, and waits until the move is complete.
    /// `iods` is in the order of the objects, first those of the first copy. The file must have as many objects as
    /// there are iods, and no iod may occur twice (`Inval`). The new objects are of the next stream, so they may be on
    /// the same iods as the old ones.
    ///
    /// Reads continue during the move. Writes and truncations wait while the mgr copies the bytes, after all clients
    /// have returned their layouts. A program sees a write that takes as long as the copy.
    ///
    /// After an error, the file has its old objects. Only if the metadata store failed, the file may have the new
    /// objects instead. `Delay`: an iod is down, a client did not return its layout in time, or unused objects of an
    /// earlier move still exist. `Exist`: an object of the next stream exists, because the store was recovered from an
    /// older copy. A background job deletes the unused objects one lease period after the move.
    ///
    /// The caller must not drop the future before the future completes, unless the mgr stops. The next start of the mgr
    /// completes or undoes the move.
    pub fn swap_layout(&self, file: FileId, iods: Vec<u16>) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let gateway = self.gateway.clone();
        async move { swap_layout::run(&gateway.server, file, &iods).await }
    }

    /// Folds a log file: moves all its bytes to striped objects on the same iods, as [`Running::swap_layout`] describes.
    /// Then deletes the data logs and the index in the background. `Inval`: the file is not a log file.
    pub fn fold(&self, file: FileId) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let gateway = self.gateway.clone();
        async move { swap_layout::fold(&gateway.server, file).await }
    }

    /// Stops the mgr: completes requests in progress, closes connections, makes the store durable and closes it.
    pub async fn stop(self) {
        let Running { network, gateway, namespace, _supervisors, mut background, .. } = self;
        network.shutdown().await;
        // Flush gathered writes while the iods are still connected. The network is shut down, so no new writes arrive.
        if tokio::time::timeout(STOP_GRACE, gateway.server.fs().0.let_all_go()).await.is_err() {
            tracing::warn!("the iods did not take all gathered writes before the mgr stopped");
        }
        background.shutdown().await;
        // Remove completed intents from the store, so that the next start of the mgr need not repeat their work.
        if let Err(e) = gateway.server.fs().0.intents.forget().await {
            tracing::error!("cannot remove finished intents: {e}");
        }
        drop((_supervisors, gateway));
        if let Err(e) = namespace.settle().await {
            tracing::error!("the metadata store failed while stopping: {e}");
        }
        // Wait for requests whose connections have ended, because such a request still has a reference to the store.
        let alone = async {
            while Arc::strong_count(&namespace) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(STOP_GRACE, alone).await.is_err() {
            tracing::warn!("requests were still in progress when the mgr stopped");
        }
    }
}
