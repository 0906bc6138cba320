//! The metadata server: binds NFS, namespace and layouts to the network and proxies I/O to the iods.
