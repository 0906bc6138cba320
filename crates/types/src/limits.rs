//! Every limit of Weir, with compile-time assertions of the relations between limits.

use std::time::Duration;

/// Longest file name in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest symlink target or path in bytes (`PATH_MAX` without its NUL).
pub const PATH_MAX: usize = 4095;
/// Maximum number of hard links to one file.
pub const LINK_MAX: u32 = 1 << 30;
/// Largest size of a file in bytes. An iod may store all bytes of a file in one object. Even then, the iod's local
/// file for this object, which also has a header, is shorter than `i64::MAX` bytes.
pub const FILE_SIZE_MAX: u64 = (1 << 62) - 1;
/// Longest xattr name in bytes, without its `user.` prefix.
pub const XATTR_NAME_MAX: usize = 250;
/// Largest xattr value in bytes.
pub const XATTR_VALUE_MAX: usize = 60 << 10;

/// Smallest stripe unit in bytes: the files layout uses the six low bits of the stripe unit for flags (RFC 8881
/// §13.2).
pub const STRIPE_UNIT_MIN: u64 = 64;
/// Largest stripe unit in bytes.
pub const STRIPE_UNIT_MAX: u64 = 1 << 30;
/// Maximum number of iods over which one file is striped.
pub const STRIPE_COUNT_MAX: usize = 256;

/// Largest READ or WRITE payload in bytes, for NFS and the native protocol.
pub const PAYLOAD_MAX: usize = 1 << 20;
/// Maximum number of extents in one READ or WRITE of the native protocol.
pub const EXTENTS_MAX: usize = 1024;
/// Maximum number of bytes of the RPC header and the operation headers in an RPC record with a payload.
pub const HEADER_MAX: usize = 64 << 10;
/// Largest RPC record in bytes. The receiver of a larger record closes the connection.
pub const RECORD_MAX: usize = PAYLOAD_MAX + HEADER_MAX;
/// Maximum number of fragments of one RPC record.
pub const FRAGMENTS_MAX: usize = 64;
/// Largest credential or verifier body in bytes (RFC 5531 §8.2).
pub const AUTH_BODY_MAX: usize = 400;
/// Largest NFS filehandle in bytes (`NFS4_FHSIZE`).
pub const FILEHANDLE_MAX: usize = 128;
/// Longest open owner, lock owner or client owner string in bytes (`NFS4_OPAQUE_LIMIT`).
pub const OPAQUE_MAX: usize = 1024;
/// Maximum number of 32-bit words of an attribute or operation bitmap.
pub const BITMAP_WORDS_MAX: usize = 8;
/// Largest body of a layout or device address, in bytes.
pub const LAYOUT_BODY_MAX: usize = 16 << 10;
/// Longest file name in bytes that decoders accept. It is above `NAME_MAX`, so that a name of invalid length gets its
/// own error instead of a decoding error.
pub const NAME_DECODE_MAX: usize = 4096;
/// Longest path or symlink target in bytes that decoders accept. It is above `PATH_MAX`, so that a path of invalid
/// length gets its own error instead of a decoding error.
pub const PATH_DECODE_MAX: usize = 8192;
/// Largest xattr value in bytes that decoders accept. It is above `XATTR_VALUE_MAX`, so that a value of invalid length
/// gets its own error instead of a decoding error.
pub const XATTR_VALUE_DECODE_MAX: usize = 128 << 10;
/// Largest XDR encoding of the attributes of one file, in bytes.
pub const ATTR_BODY_MAX: usize = 32 << 10;
/// Maximum number of entries that decoders accept in one reply to READDIR or LISTXATTRS.
pub const DIRECTORY_PAGE_MAX: usize = 64 << 10;
/// Maximum number of stateids in one TEST_STATEID.
pub const STATEIDS_MAX: usize = 4096;
/// Maximum number of items in a list of a message, if no other limit applies to the list.
pub const LIST_MAX: usize = 1024;

/// Maximum number of operations in one COMPOUND.
pub const COMPOUND_OPS_MAX: u32 = 64;
/// Maximum number of slots (requests in flight) of one session.
pub const SLOTS_MAX: u32 = 64;
/// Largest reply in bytes that the reply cache stores.
pub const REPLY_CACHED_MAX: u32 = 8 << 10;
/// Maximum number of sessions of one client.
pub const SESSIONS_PER_CLIENT_MAX: usize = 16;
/// Maximum number of clients that the mgr keeps records of.
pub const CLIENTS_MAX: usize = 16 << 10;
/// Maximum number of client records without a session. When the limit is reached, a new record replaces the oldest such
/// record.
pub const UNCONFIRMED_MAX: usize = 4 << 10;
/// Maximum number of open states of one client.
pub const OPENS_PER_CLIENT_MAX: usize = 64 << 10;
/// Maximum number of open states of all clients.
pub const OPENS_MAX: usize = 512 << 10;
/// Maximum number of byte-range locks of one client: locked ranges, lock stateids, and waiting lock requests together.
pub const LOCKS_PER_CLIENT_MAX: usize = 16 << 10;
/// Maximum number of locked ranges, lock stateids, and waiting lock requests of all clients together.
pub const LOCKS_MAX: usize = 256 << 10;
/// Maximum number of waiting lock requests of one file that the mgr queues in the order of their arrival.
pub const LOCK_WAITERS_PER_FILE_MAX: usize = 64;
/// Maximum number of delegations of one client.
pub const DELEGATIONS_PER_CLIENT_MAX: usize = 16 << 10;
/// Maximum number of delegations of all clients.
pub const DELEGATIONS_MAX: usize = 128 << 10;
/// Maximum number of clients that keep their state after their lease has expired.
pub const LAPSED_CLIENTS_MAX: usize = 1024;
/// Maximum number of layouts of one client.
pub const LAYOUTS_PER_CLIENT_MAX: usize = 64 << 10;
/// Maximum number of layouts of all clients.
pub const LAYOUTS_MAX: usize = 512 << 10;
/// Maximum number of bytes in the reply caches of all sessions together.
pub const REPLY_CACHE_BYTES: u64 = 512 << 20;
/// A new session gets at most this fraction (one divided by this number) of the free reply cache, so that space remains
/// for later sessions.
pub const REPLY_CACHE_SHARE: u64 = 1024;

/// Maximum number of connections that one daemon accepts.
pub const CONNECTIONS_MAX: usize = 4096;
/// Maximum number of connections that one daemon accepts from one address. All connections over Unix sockets count as
/// connections from one address.
pub const CONNECTIONS_PER_PEER_MAX: usize = 2048;
/// Maximum number of connections to one iod whose peers have not yet authenticated with PROVE.
pub const STRANGERS_MAX: usize = 1024;
/// Maximum number of connections from one machine to one iod whose peers have not yet authenticated with PROVE.
pub const STRANGERS_PER_MACHINE_MAX: usize = 128;
/// Time limit within which the peer of an iod's connection must complete PROVE.
pub const STRANGER_TIME: Duration = Duration::from_secs(10);
/// Maximum number of requests in progress of one connection. Further requests wait in the socket buffer of the
/// connection.
pub const IN_FLIGHT_PER_CONNECTION: usize = 128;
/// Bytes of memory that a daemon reserves for the execution of one request, in addition to the bytes of the request and
/// its reply. The reservation counts towards [`CONNECTION_BYTES_MAX`] and [`NET_BYTES_MAX`].
pub const CALL_BYTES: usize = 16 << 10;
/// Largest reply to a request without bulk data, in bytes.
pub const REPLY_SMALL: usize = 4 << 10;
/// Maximum number of bytes in the requests in progress and the unsent replies of one connection. Above this limit, the
/// daemon stops reading from the connection.
pub const CONNECTION_BYTES_MAX: usize = 32 << 20;
/// Maximum number of bytes in the requests in progress and the unsent replies of all connections of a daemon together.
pub const NET_BYTES_MAX: usize = 512 << 20;
/// Maximum number of bytes of memory that an idle connection with sessions uses.
pub const IDLE_BYTES_MAX: usize = 64 << 10;
/// Time limit for the arrival of the first request on a new connection.
pub const FIRST_REQUEST_TIME: Duration = Duration::from_secs(60);
/// Time limit for a peer to send the rest of an RPC record, and to accept the next reply. The daemon closes the
/// connection of a slower peer. Between requests, a connection may stay idle without limit.
pub const STALL_TIME: Duration = Duration::from_secs(60);
/// The time limit that replaces [`STALL_TIME`] while the daemon has little free memory for requests.
pub const STALL_TIME_UNDER_PRESSURE: Duration = Duration::from_secs(2);
/// Maximum number of bytes of memory that an mgr uses when all its tables and buffers are full.
pub const MGR_MEMORY_MAX: usize = 4 << 30;
/// Default limit in bytes of the small writes that an mgr holds in memory to join them (write gathering). The mgr
/// sends a write that would exceed the limit to the iods at once.
pub const GATHER_BYTES: usize = 64 << 20;
/// Largest value in bytes that the configuration of an mgr may set for the memory of gathered writes.
pub const GATHER_BYTES_MAX: usize = 256 << 20;
/// Maximum number of files for which an mgr remembers that it failed to write gathered bytes to the iods. It forgets
/// the failure of a file after it has reported the failure to the writers.
pub const GATHER_FAILED_MAX: usize = 1024;
/// Maximum number of files with possible holes for which an mgr caches the bytes of storage that the file uses.
pub const SPACE_KNOWN_MAX: usize = 16384;
/// Maximum number of object files that an iod keeps open.
pub const OPEN_OBJECTS_MAX: usize = 4096;
/// Maximum number of removed files for which an iod keeps tombstones, so that late writes do not create objects
/// again.
pub const IOD_GONE_MAX: usize = 64 << 10;
/// Maximum number of payload buffers that an iod uses at the same time. Further requests wait for a free buffer.
pub const IOD_BUFFERS_MAX: usize = 256;
/// Maximum number of written bytes that a client may hold in flight or uncommitted. At this limit, further writes on
/// the client wait.
pub const CLIENT_WINDOW_BYTES: usize = 64 << 20;
/// Maximum number of bytes of read-ahead data that a client holds for all its readers together.
pub const READ_AHEAD_BYTES: usize = 64 << 20;
/// Maximum number of requests of the native protocol that one client has in flight to one iod.
pub const IN_FLIGHT_PER_IOD: usize = 8;

/// Maximum number of keys that one metadata batch writes or removes.
pub const BATCH_WRITES_MAX: usize = 1000;
/// Maximum number of preconditions of one metadata batch. Moving a directory has one precondition for each ancestor
/// directory of the new name, so this limit also bounds the depth of a moved directory.
pub const BATCH_EXPECTS_MAX: usize = 4096;
/// Maximum number of bytes of keys and values in one metadata batch.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Largest metadata key in bytes.
pub const KEY_MAX: usize = 500;
/// Largest metadata value in bytes.
pub const VALUE_MAX: usize = 64 << 10;
/// Maximum number of metadata batches that share one flush (group commit).
pub const META_GROUP_BATCHES: usize = 1000;
/// Maximum number of bytes of the metadata batches in one flush. Above this limit no further batch joins the flush.
pub const META_GROUP_BYTES: usize = 8 << 20;
/// Maximum number of metadata batches that wait for the writer task of the metadata store. Above this limit, the store
/// delays further batches.
pub const META_QUEUE_BATCHES: usize = 8192;
/// Maximum number of bytes of the metadata batches that wait for the writer task of the metadata store.
pub const META_QUEUE_BYTES: usize = 64 << 20;
/// Size of the cache of the embedded metadata store, in bytes.
pub const META_CACHE_BYTES: usize = 256 << 20;
/// Initial size in bytes of the batch log of a new metadata store. When the log is full before a checkpoint, the store
/// doubles its size.
pub const META_LOG_BYTES: u64 = 4 << 20;
/// Largest size of the batch log in bytes. This limit and [`META_CHECKPOINT_INTERVAL`] bound how many changes the store
/// replays after a crash.
pub const META_LOG_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of bytes, with overhead, of changes that are only in memory and in the batch log. If the changes
/// exceed this limit or half of the log's size, the store writes the changes to its database file without a flush.
pub const META_RECENT_BYTES: u64 = 4 << 20;
/// Maximum time for which a change is only in the batch log. After this time, the store flushes its database file
/// (checkpoint).
pub const META_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of bytes by which one changed record enlarges the file of the metadata store. The store writes new
/// copies of the B-tree pages on the path to this record; pages on the paths to several changed records do not count.
pub const META_CHANGE_BYTES: u64 = 12 << 10;
/// Free disk space in bytes below which the metadata store on a large disk accepts only removals and recovery.
pub const META_RESERVE_BYTES: u64 = 64 << 20;
/// Free disk space in bytes that an iod leaves on a large disk. With less free space, the iod refuses new data, so that
/// an mgr on the same disk can still change and remove files.
pub const IOD_RESERVE_BYTES: u64 = 128 << 20;

/// Returns the free space in bytes that an iod leaves on a disk of `total` bytes: a sixteenth of the disk, but at most
/// [`IOD_RESERVE_BYTES`].
pub const fn iod_reserve(total: u64) -> u64 {
    let share = total / 16;
    if share < IOD_RESERVE_BYTES { share } else { IOD_RESERVE_BYTES }
}

/// Returns the free space in bytes below which the metadata store on a disk of `total` bytes accepts only removals and
/// recovery.
///
/// The value is at most half of [`iod_reserve`]. So an mgr on the same disk still works after iods have filled the
/// disk up to their own limit.
pub const fn meta_reserve(total: u64) -> u64 {
    let share = total / 32;
    if share < META_RESERVE_BYTES { share } else { META_RESERVE_BYTES }
}
/// Maximum number of bytes that an iod writes between two checks of the free disk space.
pub const IOD_ROOM_BYTES: u64 = 16 << 20;
/// Largest layout record of a file, in bytes.
pub const LAYOUT_RECORD_MAX: usize = 4 << 10;
/// Maximum number of extended attributes of one file.
pub const XATTRS_MAX: usize = 256;
/// Maximum number of bytes of names and values of all extended attributes of one file.
pub const XATTRS_BYTES_MAX: usize = 256 << 10;
/// Maximum number of entries that the metadata store returns in one read of a directory.
pub const READDIR_MAX: usize = 4096;
/// Longest key in bytes of a record in the registry (a table of the metadata store).
pub const REGISTRY_KEY_MAX: usize = 64;

/// Maximum memory in bytes of one open, layout, lock or client in the mgr's tables, including an owner string of
/// [`OPAQUE_MAX`] bytes.
const STATE_BYTES: usize = OPAQUE_MAX + 512;
/// Memory in bytes of one delegation in the mgr's tables. A delegation has no owner string.
const DELEGATION_BYTES: usize = 512;
/// Upper bound in bytes of the memory that an mgr uses for its caches, tables and buffers.
const MGR_MEMORY: usize = META_CACHE_BYTES
    + META_QUEUE_BYTES
    + META_RECENT_BYTES as usize
    + META_GROUP_BYTES
    + NET_BYTES_MAX / 8 * 9
    + CONNECTIONS_MAX * IDLE_BYTES_MAX
    + REPLY_CACHE_BYTES as usize
    + GATHER_BYTES_MAX
    + (OPENS_MAX + LAYOUTS_MAX + LOCKS_MAX + CLIENTS_MAX) * STATE_BYTES
    + DELEGATIONS_MAX * DELEGATION_BYTES;

const _: () = {
    assert!(MGR_MEMORY <= MGR_MEMORY_MAX);
    assert!(2 * CONNECTIONS_PER_PEER_MAX <= CONNECTIONS_MAX, "one peer cannot take all places");
    assert!(STRANGERS_MAX <= CONNECTIONS_MAX / 4 && STRANGERS_PER_MACHINE_MAX <= STRANGERS_MAX / 8);
    // While a daemon receives a large record, it also reserves memory for the largest reply to this record. The largest
    // reply is as long as a record, so the limit of a connection must suffice for two records.
    assert!(2 * RECORD_MAX + CALL_BYTES < CONNECTION_BYTES_MAX && 8 * CONNECTION_BYTES_MAX <= NET_BYTES_MAX);
    assert!(REPLY_SMALL + CALL_BYTES < IDLE_BYTES_MAX && STALL_TIME_UNDER_PRESSURE.as_secs() < STALL_TIME.as_secs());
    assert!(2 * UNCONFIRMED_MAX < CLIENTS_MAX && CONNECTIONS_MAX <= CLIENTS_MAX - UNCONFIRMED_MAX);
    assert!(OPENS_PER_CLIENT_MAX < OPENS_MAX / 4 && LAYOUTS_PER_CLIENT_MAX < LAYOUTS_MAX / 4);
    assert!(LOCKS_PER_CLIENT_MAX < LOCKS_MAX / 4 && LAPSED_CLIENTS_MAX < CLIENTS_MAX / 4);
    assert!(DELEGATIONS_PER_CLIENT_MAX < DELEGATIONS_MAX / 4);
    // The reply cache has space for a session with at least one slot on each connection.
    assert!(REPLY_CACHE_BYTES / REPLY_CACHED_MAX as u64 >= 8 * CONNECTIONS_MAX as u64);
    assert!(STRIPE_UNIT_MIN.is_multiple_of(64) && STRIPE_UNIT_MAX < 1 << 32);
    assert!(EXTENTS_MAX * 16 + AUTH_BODY_MAX * 2 + 4096 < HEADER_MAX);
    assert!(REPLY_CACHED_MAX as usize <= RECORD_MAX);
    assert!(XATTR_VALUE_MAX + KEY_MAX < VALUE_MAX);
    assert!(NAME_MAX + 64 < KEY_MAX && XATTR_NAME_MAX + 64 < KEY_MAX);
    assert!(STRIPE_COUNT_MAX * 48 + 1024 < LAYOUT_BODY_MAX);
    assert!(NAME_MAX < NAME_DECODE_MAX && PATH_MAX < PATH_DECODE_MAX && XATTR_VALUE_MAX < XATTR_VALUE_DECODE_MAX);
    assert!(XATTR_VALUE_DECODE_MAX < RECORD_MAX && ATTR_BODY_MAX < HEADER_MAX);
    assert!(CLIENT_WINDOW_BYTES >= 16 * PAYLOAD_MAX);
    assert!(GATHER_BYTES <= GATHER_BYTES_MAX && GATHER_BYTES >= 8 * PAYLOAD_MAX);
    assert!(BATCH_BYTES_MAX + VALUE_MAX < META_GROUP_BYTES && META_GROUP_BYTES < META_QUEUE_BYTES);
    assert!(META_RESERVE_BYTES >= 4 * META_GROUP_BYTES as u64);
    assert!(META_LOG_BYTES.is_multiple_of(4096) && META_LOG_BYTES <= META_LOG_BYTES_MAX);
    // An iod leaves at least twice as much disk space free as the metadata store does. The number of bytes that an
    // iod may write between two checks of the free space suffices for sixteen payloads of the maximum size.
    assert!(2 * META_RESERVE_BYTES <= IOD_RESERVE_BYTES && IOD_ROOM_BYTES >= 16 * PAYLOAD_MAX as u64);
    assert!(LAYOUT_RECORD_MAX + PATH_MAX < VALUE_MAX && LAYOUT_RECORD_MAX <= LAYOUT_BODY_MAX);
    // A removal deletes all extended attributes of a file in one batch. A new directory copies the extended attributes
    // of its parent. So all extended attributes of one file must fit into one batch.
    assert!(XATTRS_MAX + 16 < BATCH_WRITES_MAX && 2 * XATTRS_BYTES_MAX < BATCH_BYTES_MAX);
    assert!(XATTR_VALUE_MAX + XATTR_NAME_MAX <= XATTRS_BYTES_MAX);
};
