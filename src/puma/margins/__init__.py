"""margins"""
