module github.com/apogeemq/apogee/interop/badinput

go 1.26
