package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"ibverbx/verbs"
)

// FS returns the peer's directory name as a read-only file system. An empty name contains all
// Exports that this side may use and whose names do not contain a slash. The result implements
// fs.ReadDirFS, fs.StatFS and fs.ReadFileFS. Its regular files implement io.ReaderAt and io.Seeker.
//
// Chunks are read on demand, verified by their digests, and not cached on disk. Close of a file returns ErrChanged if the file has changed
// since Open. Symbolic links are followed within their Export, and special files are omitted. Calls fail once ctx is done. At most 128 files
// of one peer can be open; Open waits for others to be closed.
func (p *Peer) FS(ctx context.Context, name string) fs.FS { return &peerFS{p, ctx, name} }

// peerFS is a directory of a peer, or its Exports.
type peerFS struct {
	peer *Peer
	ctx  context.Context
	top  string
}

// name returns the remote name of a path, empty for the list of Exports.
func (f *peerFS) name(op, name string) (string, error) {
	switch {
	case !fs.ValidPath(name):
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	case f.peer == nil || f.peer.engine == nil:
		return "", &fs.PathError{Op: op, Path: name, Err: ErrClosed}
	case f.ctx == nil:
		return "", &fs.PathError{Op: op, Path: name, Err: verbs.Invalidf("the Context is nil")}
	}
	if full := path.Join(f.top, name); full != "." {
		return full, nil
	}
	return "", nil
}

// pathError adds the matching error of package fs.
func pathError(op, name string, err error) error {
	switch err = translate(err); {
	case err == nil:
		return nil
	case errors.Is(err, ErrNotFound):
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case errors.Is(err, ErrDenied):
		err = fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Stat implements fs.StatFS.
func (f *peerFS) Stat(name string) (fs.FileInfo, error) {
	full, err := f.name("stat", name)
	if err != nil {
		return nil, err
	}
	if full == "" {
		return infoOf(Info{Name: ".", Mode: fs.ModeDir | 0o555}), nil
	}
	i, err := f.peer.Stat(f.ctx, full)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	i.Name = path.Base(name)
	return infoOf(i), nil
}

// ReadDir implements fs.ReadDirFS.
func (f *peerFS) ReadDir(name string) ([]fs.DirEntry, error) {
	full, err := f.name("readdir", name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	all, err := f.peer.List(f.ctx, full)
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	list := make([]fs.DirEntry, 0, len(all))
	for _, i := range all {
		if full == "" && strings.Contains(i.Name, "/") {
			continue
		}
		i.Name = path.Base(i.Name)
		list = append(list, fs.FileInfoToDirEntry(infoOf(i)))
	}
	return list, nil
}

// Open implements fs.FS.
func (f *peerFS) Open(name string) (fs.File, error) {
	full, err := f.name("open", name)
	if err != nil {
		return nil, err
	}
	if full != "" {
		file, err := f.peer.openRemote(f.ctx, full)
		if err != nil || file != nil {
			if err != nil {
				return nil, pathError("open", name, err)
			}
			file.info.name = path.Base(name)
			return file, nil
		}
	}
	info, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	return &remoteDir{fs: f, name: name, info: info}, nil
}

// ReadFile implements fs.ReadFileFS.
func (f *peerFS) ReadFile(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	return b, nil
}

// fileInfo is an Info as fs.FileInfo.
type fileInfo struct {
	name string
	info Info
}

func infoOf(i Info) fileInfo { return fileInfo{i.Name, i} }

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.info.Size }
func (i fileInfo) Mode() fs.FileMode  { return i.info.Mode }
func (i fileInfo) ModTime() time.Time { return i.info.ModTime }
func (i fileInfo) IsDir() bool        { return i.info.Mode.IsDir() }
func (i fileInfo) Sys() any           { return nil }

// remoteDir is an open directory of a peer.
type remoteDir struct {
	fs   *peerFS
	name string
	info fs.FileInfo
	// list holds the entries to return, once read is set.
	list   []fs.DirEntry
	read   bool
	closed bool
}

func (d *remoteDir) Stat() (fs.FileInfo, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "stat", Path: d.name, Err: fs.ErrClosed}
	}
	return d.info, nil
}

func (d *remoteDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: errors.New("is a directory")}
}

func (d *remoteDir) Close() error {
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.name, Err: fs.ErrClosed}
	}
	d.closed = true
	return nil
}

// ReadDir implements fs.ReadDirFile.
func (d *remoteDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.read {
		list, err := d.fs.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.list, d.read = list, true
	}
	if n <= 0 {
		n = len(d.list)
	} else if len(d.list) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.list))
	list := d.list[:n:n]
	d.list = d.list[n:]
	return list, nil
}
